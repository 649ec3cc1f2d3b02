from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.plan import kv
from toolkit.plan.need import Need, from_model_config

LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def test_a_token_of_llama_8b_keeps_128_kib():
    assert kv.bytes_per_token_of(LLAMA_8B, 2, 1, 1) == 128 * 1024


def test_heads_are_divided_among_gpus_until_each_has_one_and_then_repeated():
    sizes = [kv.bytes_per_token_of(LLAMA_8B, 2, tp, 1) for tp in (1, 2, 8, 16)]
    assert [sizes[0] // size for size in sizes if size] == [1, 2, 8, 8]


def test_latent_attention_keeps_one_vector_a_layer_on_every_gpu():
    config = {**LLAMA_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv.bytes_per_token_of(config, 2, 8, 1) == 32 * 576 * 2


def test_a_config_that_says_too_little_gives_no_number():
    assert kv.bytes_per_token_of({"num_hidden_layers": 2}, 2, 1, 1) is None
    assert from_model_config({}, 10).kv_bytes_per_token is None


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20), st.integers(1, 1 << 17), st.integers(1, 256))
def test_blocks_and_requests_never_exceed_the_bytes(size: int, per_token: int, length: int, block: int):
    found = kv.capacity(size, per_token, length, block)
    assert found.blocks * block * per_token <= size
    assert found.full_length_requests * kv.blocks_for(length, block) <= found.blocks
    assert (found.blocks + 1) * block * per_token > size


def test_a_need_read_from_a_config_is_whole_once_graphs_are_known():
    need = from_model_config(
        LLAMA_8B, 16 * 10**9, tp_size=2, max_seq_len=4096, max_batch_size=8, max_num_tokens=8192, graph_pool_bytes=0
    )
    assert need.weights_bytes == 8 * 10**9
    assert need.kv_bytes(8) == 8 * 4096 * 64 * 1024
    assert need.least_bytes is not None
    assert need.most_bytes == need.least_bytes + 7 * 4096 * 64 * 1024


def test_unfused_attention_needs_memory_that_grows_with_the_square_of_the_length():
    def scores(length: int) -> int:
        fused, unfused = (
            from_model_config(LLAMA_8B, 1, max_seq_len=length, max_num_tokens=1024, fused_attention=on).activation_bytes
            for on in (True, False)
        )
        assert fused is not None
        assert unfused is not None
        return unfused - fused

    assert scores(4096) == 4 * scores(2048) > 0


def test_a_model_without_a_kv_cache_needs_none():
    need = Need(weights_bytes=10, activation_bytes=5, graph_pool_bytes=0, kv_bytes_per_token=0)
    assert need.least_bytes == need.most_bytes == 15


def test_the_length_a_model_could_do_is_not_taken_for_the_servers():
    need = from_model_config(LLAMA_8B, 16 * 10**9, max_batch_size=8, graph_pool_bytes=0)
    assert (need.max_seq_len, need.least_bytes) == (None, None)


def test_weights_count_in_the_type_that_the_server_runs_in():
    stored = {**LLAMA_8B, "torch_dtype": "float32"}
    need = from_model_config(stored, 32 * 10**9, dtype="bfloat16", max_seq_len=4096)
    assert (need.weights_bytes, need.kv_bytes_per_token) == (16 * 10**9, 128 * 1024)
    unknown = from_model_config({**LLAMA_8B, "torch_dtype": None}, 32 * 10**9, dtype="bfloat16")
    assert unknown.weights_bytes == 32 * 10**9
