from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.fakes import frontend_serving
from tests.serve.small_models import HIDDEN, WORDS, write_bert, write_sentence_files
from toolkit.errors import ToolkitError
from toolkit.serve import frontend
from toolkit.serve.batcher import Limits, Tokens
from toolkit.serve.sentence import SentenceConfig, SentenceTokenizer, read_sentence_config
from toolkit.serve.sizes import padded

PATH = "/v1/embeddings"


def vectors(body: Any) -> torch.Tensor:
    return torch.tensor([entry["embedding"] for entry in body["data"]])


async def test_embeddings_have_openai_s_shape(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, {"model": "small", "input": ["w1 w2", "w3"]})
    assert status == 200
    assert body["object"] == "list"
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert body["truncated"] == []
    assert vectors(body).shape == (2, HIDDEN)
    assert vectors(body).norm(dim=-1).tolist() == pytest.approx([1, 1], abs=1e-5)


async def test_text_list_and_ids_of_the_same_text_give_the_same_vector(tmp_path: Path) -> None:
    ids = [2, 4 + 1, 4 + 2, 3]
    async with frontend_serving(tmp_path) as client:
        answers = [await client.post(PATH, {"input": i}) for i in ("w1 w2", ["w1 w2"], ids, [ids])]
    first = vectors(answers[0][1])
    for status, body in answers:
        assert status == 200
        torch.testing.assert_close(vectors(body), first)


async def test_base64_holds_the_same_little_endian_floats(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        _, plain = await client.post(PATH, {"input": "w7"})
        _, coded = await client.post(PATH, {"input": "w7", "encoding_format": "base64"})
    raw = base64.b64decode(coded["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN}f", raw)) == pytest.approx(plain["data"][0]["embedding"])


async def test_fewer_dimensions_are_the_first_ones_at_length_one(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        _, whole = await client.post(PATH, {"input": "w7"})
        _, short = await client.post(PATH, {"input": "w7", "dimensions": 8})
    expected = vectors(whole)[:, :8]
    torch.testing.assert_close(vectors(short), expected / expected.norm())


async def test_truncation_is_said_in_field_and_header(tmp_path: Path) -> None:
    long = " ".join(["w1"] * 30)
    async with frontend_serving(tmp_path) as client:
        async with client.session.post(PATH, json={"input": ["w1", long]}) as answer:
            assert answer.headers["X-Coexist-Truncated"] == "1"
            body = await answer.json()
        async with client.session.post(PATH, json={"input": "w1"}) as answer:
            assert "X-Coexist-Truncated" not in answer.headers
        _, ids = await client.post(PATH, {"input": [[5] * 13, [5] * 12]})
    assert body["truncated"] == [1]
    assert body["usage"]["prompt_tokens"] == 3 + 12
    assert ids["truncated"] == [0]


@pytest.mark.parametrize("given", ["w1 " * 30, ["w1", "w1 " * 30], [5] * 13])
async def test_where_truncation_is_forbidden_a_long_input_is_refused_by_its_place(tmp_path: Path, given: Any) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, {"input": given, "truncate": False})
        fits, _ = await client.post(PATH, {"input": "w1", "truncate": False})
    assert (status, fits) == (400, 200)
    assert body["error"]["code"] == "context_length_exceeded"
    place = "input[1]" if given[0] == "w1" and isinstance(given, list) else "input"
    assert body["error"]["message"].startswith(f"{place} is longer than 12 tokens")


async def test_embeddings_of_a_model_without_a_norm_are_only_cut_to_fewer_dimensions(tmp_path: Path) -> None:
    write_bert(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps(modules[:2]))
    async with frontend_serving(tmp_path) as client:
        _, whole = await client.post(PATH, {"input": "w7"})
        _, short = await client.post(PATH, {"input": "w7", "dimensions": 8})
    torch.testing.assert_close(vectors(short), vectors(whole)[:, :8])


async def test_many_inputs_come_back_in_their_order_whatever_their_length(tmp_path: Path) -> None:
    inputs = [" ".join(f"w{n % 60}" for n in range(k, k + k % 7)) for k in range(80)]
    async with frontend_serving(tmp_path, "--max-batch", "8") as client:
        _, together = await client.post(PATH, {"input": inputs})
        alone = [vectors((await client.post(PATH, {"input": text}))[1]) for text in inputs[::9]]
    assert [entry["index"] for entry in together["data"]] == list(range(80))
    torch.testing.assert_close(vectors(together)[::9], torch.cat(alone), atol=1e-5, rtol=1e-4)


async def test_unknown_fields_are_ignored_and_null_is_the_default(tmp_path: Path) -> None:
    nothing = {"model": None, "encoding_format": None, "dimensions": None, "truncate": None, "user": "me", "x": [{}]}
    async with frontend_serving(tmp_path) as client:
        plain, more = await client.post(PATH, {"input": "w1"}), await client.post(PATH, {"input": "w1", **nothing})
    assert plain == more


async def test_a_whole_number_written_with_a_point_is_one(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, {"input": [5.0, 6], "dimensions": 8.0})
    assert status == 200
    assert vectors(body).shape == (1, 8)


async def test_texts_of_several_clients_go_in_one_batch_and_come_back_to_their_own(tmp_path: Path) -> None:
    inputs = [f"w{n} w{n + 1}" for n in range(6)]
    gate, batches = threading.Event(), list[int]()
    async with frontend_serving(tmp_path) as client:
        backend: Any = client.server._backend
        alone = [vectors((await client.post(PATH, {"input": text}))[1]) for text in inputs]

        def gated(texts: Sequence[Tokens]) -> torch.Tensor:
            batches.append(len(texts))
            assert gate.wait(30)
            return backend.encoder.embed(texts)

        backend._batcher._embed = gated
        tasks = [asyncio.create_task(client.post(PATH, {"input": text})) for text in inputs]
        while not batches or backend._batcher.queued + batches[0] < len(inputs):
            await asyncio.sleep(0.005)
        gate.set()
        together = await asyncio.gather(*tasks)
    for (_, body), expected in zip(together, alone, strict=True):
        torch.testing.assert_close(vectors(body), expected, atol=1e-5, rtol=1e-4)
    assert len(batches) <= 2


async def test_a_failing_batch_is_an_error_of_its_requests_and_the_server_lives_on(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        backend: Any = client.server._backend
        embed = backend._batcher._embed
        backend._batcher._embed = lambda texts: 1 / 0
        status, body = await client.post(PATH, {"input": "w1"})
        backend._batcher._embed = embed
        assert status == 500
        assert body["error"]["type"] == "server_error"
        assert (await client.post(PATH, {"input": "w1"}))[0] == 200


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "input"), ({"input": []}, "input"), ({"input": None}, "input"), ({"input": 5}, "input"),
    ({"input": {}}, "input"), ({"input": ["a", 1]}, "input[1]"), ({"input": [[1], "a"]}, "input[1]"),
    ({"input": [[]]}, "input[0]"), ({"input": [1, 2.5]}, "input[1]"), ({"input": [len(WORDS)]}, "token id"),
    ({"input": [-1]}, "token id"), ({"input": "\ud800"}, "surrogate"), ({"input": ["x"] * 2049}, "2048"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": "a", "dimensions": 0}, "dimensions"),
    ({"input": "a", "dimensions": HIDDEN + 1}, "dimensions"), ({"input": "a", "model": []}, "model"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "says"), BAD, ids=lambda value: repr(value)[:50])
async def test_a_bad_request_is_refused_by_name(tmp_path: Path, body: dict[str, Any], says: str) -> None:
    async with frontend_serving(tmp_path) as client:
        status, answer = await client.post(PATH, body)
    assert status == 400
    assert says in answer["error"]["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"input": "\\ud800"}', b'{"input":NaN}'])
async def test_a_body_that_is_no_request_is_never_a_server_error(tmp_path: Path, raw: bytes) -> None:
    async with frontend_serving(tmp_path) as client, client.session.post(PATH, data=raw) as answer:
        assert answer.status == 400


async def test_an_empty_text_has_an_embedding(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, {"input": ""})
    assert status == 200
    assert body["usage"]["prompt_tokens"] == 2


async def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        assert (await client.post(PATH, {"input": "a", "model": "other"}))[0] == 404


# The contract with coexist.


async def test_until_registered_only_the_token_s_holder_is_answered(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path, register=False) as client:
        await client.loaded()
        assert (await client.post(PATH, {"input": "w1"}))[0] == 503
        assert (await client.get("/health_generate"))[0] == 503
        assert (await client.post(PATH, {"input": "w1"}, client.token))[0] == 200
        await client.register()
        assert (await client.post(PATH, {"input": "w1"}))[0] == 200
        assert (await client.get("/health_generate"))[0] == 200


async def test_warm_up_runs_every_bucket(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path, "--max-batch", "4", register=False) as client:
        await client.loaded()
        _, keys = await client.get("/v1/warmup/keys")
        _, ran = await client.post("/v1/warmup", {"mode": "full"}, client.token)
        _, after = await client.get("/v1/warmup/keys")
        _, single = await client.post("/v1/warmup", {"mode": "single"}, client.token)
    assert keys["keys"][0] == "1x4"
    assert keys["keys"][-1] == "4x12"
    assert (keys["done"], keys["compiled"]) == ([], [])
    assert ran["keys"] == keys["keys"]
    assert after["done"] == keys["keys"]
    assert single["keys"] == ["1x4"]


@given(st.integers(1, 64), st.integers(1, 512), st.integers(1, 8192))
def test_every_batch_is_padded_to_a_size_that_was_warmed(texts: int, max_length: int, tokens: int) -> None:
    limits = Limits(texts, tokens, 0.01, 1)
    keys = [tuple(map(int, key.split("x"))) for key in frontend.token_buckets(limits, max_length)]
    assert all(length <= max_length for _, length in keys)
    warmed = {padded(count * length, sys.maxsize) for count, length in keys}
    for size in range(1, max(max_length, min(texts * max_length, tokens)) + 1):
        assert padded(size, sys.maxsize) in warmed


async def test_stage_reports_the_attention_that_ran_and_the_bytes_read(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        _, stage = await client.get("/v1/stage")
        async with client.session.get("/metrics") as answer:
            metrics = await answer.text()
    assert stage["attention"] == "sdpa"
    assert stage["bytes_read"] == (tmp_path / "model.safetensors").stat().st_size - header_bytes(tmp_path)
    assert stage["parts"]["kv_cache"] is None
    assert stage["parts"]["weights"] > 0
    assert 'coexist_server_attention_info{asked="auto",kernels="aten::' in metrics
    assert 'used="sdpa"' in metrics


def header_bytes(folder: Path) -> int:
    with (folder / "model.safetensors").open("rb") as file:
        return 8 + int(struct.unpack("<Q", file.read(8))[0])


async def test_models_tells_dimension_and_length(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        _, body = await client.get("/v1/models")
    (model,) = body["data"]
    assert (model["id"], model["dimension"], model["max_model_len"]) == ("small", HIDDEN, 12)


# What the sentence-transformers files say.


def test_without_sentence_files_pooling_is_the_mean_without_norm(tmp_path: Path) -> None:
    assert read_sentence_config(tmp_path) == SentenceConfig(tmp_path)


def test_sentence_files_are_read(tmp_path: Path) -> None:
    write_sentence_files(tmp_path, mode="cls_token")
    assert read_sentence_config(tmp_path) == SentenceConfig(tmp_path, ("cls",), True, 12)


def test_pooling_of_newer_files_is_read(tmp_path: Path) -> None:
    write_sentence_files(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": ["max", "mean"]}')
    assert read_sentence_config(tmp_path).pooling == ("max", "mean")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("modules.json", '[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]', "Dense"),
        ("modules.json", "{", "not a list of modules"),
        ("1_Pooling/config.json", '{"pooling_mode": "median"}', "median"),
        ("sentence_bert_config.json", "[", "not valid JSON"),
    ],
)
def test_what_is_unsupported_or_broken_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    write_sentence_files(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ToolkitError, match=says):
        read_sentence_config(tmp_path)


def test_lower_case_and_default_prompt_are_applied_before_the_tokenizer(tmp_path: Path) -> None:
    write_bert(tmp_path)
    plain = SentenceTokenizer.load(SentenceConfig(tmp_path), 12)
    prompted = SentenceTokenizer.load(SentenceConfig(tmp_path, lower_case=True, default_prompt="w9 "), 12)
    assert prompted.encode(["W1"])[0].ids == plain.encode(["w9 w1"])[0].ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"]
)
async def test_every_pooling_is_sentence_transformers_own(tmp_path: Path, mode: str) -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds; fast tests do without

    texts = ["w1", "w2 w3 w4", "", " ".join(f"w{n}" for n in range(20))]
    write_bert(tmp_path)
    write_sentence_files(tmp_path, mode=mode)
    expected = torch.from_numpy(SentenceTransformer(str(tmp_path), device="cpu").encode(texts))
    async with frontend_serving(tmp_path) as client:
        _, body = await client.post(PATH, {"input": texts})
    assert torch.cosine_similarity(vectors(body), expected).min() > 0.9999


@pytest.mark.slow
async def test_a_real_model_s_embeddings_are_those_of_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds; fast tests do without

    folder = Path(__file__).parents[2] / "models" / "all-minilm-l6-v2"
    if not folder.is_dir():
        pytest.skip("the model is not there: run 'make models'")
    texts = [
        "The capital of France is Paris.",
        "",
        "日本語 é 🎉",
        "word " * 400,
        *(f"text {n} " * n for n in range(40)),
    ]
    expected = torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(texts))
    async with frontend_serving(folder) as client:
        _, body = await client.post(PATH, {"input": texts})
    assert body["truncated"] == [3]
    assert torch.cosine_similarity(vectors(body), expected).min() >= 0.9999
