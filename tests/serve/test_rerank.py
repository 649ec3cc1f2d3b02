from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.serve.fakes import frontend_serving
from tests.serve.small_models import HIDDEN, write_bert, write_cross_encoder

PATH = "/v1/rerank"
DOCUMENTS: list[Any] = ["w4 w5", {"text": "w1 w2"}, "w6", {"text": "w7 w8 w9", "title": "ignored"}]
IDENTITY = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "small", "query": "w1 w2", "documents": DOCUMENTS, **more}


def by_index(body: Any) -> list[float]:
    results = sorted(body["results"], key=lambda result: result["index"])
    return [result["relevance_score"] for result in results]


async def test_documents_come_back_best_first_with_their_index(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, ask())
    assert status == 200
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2, 3]
    assert body["results"][0]["index"] == 1
    assert all("document" not in result for result in body["results"])
    assert (body["object"], body["model"], body["truncated"]) == ("list", "small", [])
    # [CLS] and [SEP] of the query and of each document.
    assert body["usage"] == {"prompt_tokens": 4 + 4 + 4 + 3 + 5, "total_tokens": 20}


async def test_an_embedding_model_scores_by_cosine_and_says_so(tmp_path: Path) -> None:
    async with frontend_serving(write_bert(tmp_path)) as client:
        _, body = await client.post(PATH, ask())
        _, embedded = await client.post("/v1/embeddings", {"input": ["w1 w2", "w4 w5", "w1 w2", "w6", "w7 w8 w9"]})
        _, models = await client.get("/v1/models")
    rows = torch.tensor([entry["embedding"] for entry in embedded["data"]])
    assert body["scoring"] == models["data"][0]["scoring"] == "cosine"
    assert by_index(body) == pytest.approx((rows[1:] @ rows[0]).tolist(), abs=1e-5)


async def test_a_cross_encoder_scores_by_the_sigmoid_of_its_logit_or_by_the_logit(tmp_path: Path) -> None:
    async with frontend_serving(write_cross_encoder(tmp_path / "a")) as client:
        _, sigmoid = await client.post(PATH, ask())
    async with frontend_serving(write_cross_encoder(tmp_path / "b", **IDENTITY)) as client:
        _, logit = await client.post(PATH, ask())
    assert (sigmoid["scoring"], logit["scoring"]) == ("sigmoid", "logit")
    assert by_index(sigmoid) == pytest.approx([1 / (1 + math.exp(-x)) for x in by_index(logit)], abs=1e-6)
    assert [r["index"] for r in sigmoid["results"]] == [r["index"] for r in logit["results"]]


async def test_top_n_and_documents_as_asked(tmp_path: Path) -> None:
    async with frontend_serving(write_cross_encoder(tmp_path)) as client:
        _, whole = await client.post(PATH, ask())
        _, best = await client.post(PATH, ask(top_n=2, return_documents=True))
        _, all_of_them = await client.post(PATH, ask(top_n=99))
    texts = ["w4 w5", "w1 w2", "w6", "w7 w8 w9"]
    assert [r["index"] for r in best["results"]] == [r["index"] for r in whole["results"][:2]]
    assert [r["document"]["text"] for r in best["results"]] == [texts[r["index"]] for r in best["results"]]
    assert len(all_of_them["results"]) == 4


async def test_equal_documents_keep_their_order(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        _, body = await client.post(PATH, ask(documents=["w1"] * 5))
    assert [result["index"] for result in body["results"]] == [0, 1, 2, 3, 4]


async def test_a_document_is_scored_alike_alone_and_among_others(tmp_path: Path) -> None:
    documents = [" ".join(f"w{n}" for n in range(k % 5 + 1)) for k in range(40)]
    async with frontend_serving(write_cross_encoder(tmp_path), "--max-batch", "8") as client:
        _, together = await client.post(PATH, ask(documents=documents))
        alone = [by_index((await client.post(PATH, ask(documents=[one])))[1])[0] for one in documents[:5]]
    assert by_index(together)[:5] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("write", [write_bert, write_cross_encoder])
async def test_truncation_is_said_or_refused(tmp_path: Path, write: Any) -> None:
    long = ["w1", "w2 " * 50]
    async with frontend_serving(write(tmp_path)) as client:
        async with client.session.post(PATH, json=ask(documents=long)) as answer:
            header, body = answer.headers["X-Coexist-Truncated"], await answer.json()
        status, refused = await client.post(PATH, ask(documents=long, truncate=False))
        _, query = await client.post(PATH, ask(query="w3 " * 50, documents=["w1", "w2"]))
    assert (header, body["truncated"]) == ("1", [1])
    assert status == 400
    assert refused["error"]["message"].startswith("documents[1] is longer than")
    assert query["truncated"] == [0, 1]


async def test_a_query_that_may_not_be_cut_is_refused_by_name(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, ask(query="w3 " * 50, truncate=False))
    assert (status, body["error"]["param"]) == (400, "query")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query": None}, "query must be a string"),
        ({"documents": []}, "documents must be a list of 1 to 2048"),
        ({"documents": "w1"}, "documents must be a list"),
        ({"documents": ["w1", {"title": "x"}]}, "documents[1].text is missing"),
        ({"documents": ["w1", 5]}, "documents[1] must be a string, or an object"),
        ({"documents": [["w1"]]}, "documents[0] must be"),
        ({"documents": ["w"] * 2049}, "documents must be a list of 1 to 2048"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": "yes"}, "return_documents must be true or false"),
    ],
)
async def test_a_bad_request_is_refused_by_name(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    async with frontend_serving(tmp_path) as client:
        status, body = await client.post(PATH, ask(**change))
    assert status == 400
    assert says in body["error"]["message"]


async def test_an_unknown_model_is_not_found(tmp_path: Path) -> None:
    async with frontend_serving(tmp_path) as client:
        assert (await client.post(PATH, ask(model="other")))[0] == 404


async def test_the_embedding_of_a_cross_encoder_is_its_first_token_s_state(tmp_path: Path) -> None:
    # What a canary is compared with: the part of the model that plain transformers load without the head.
    async with frontend_serving(write_cross_encoder(tmp_path), "--max-batch", "4") as client:
        _, one = await client.post("/v1/embeddings", {"input": "w1 w2"})
        _, models = await client.get("/v1/models")
    assert len(one["data"][0]["embedding"]) == HIDDEN
    assert models["data"][0]["scoring"] == "sigmoid"
