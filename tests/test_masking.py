from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.masking import MASK, is_secret, is_secret_variable, masked, masked_argv, masked_env, secret_values


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GITHUB_PAT", "KEY"]
)
def test_secret_names_are_known(name: str) -> None:
    assert is_secret(name)
    assert is_secret_variable(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PATH", "OMP_NUM_THREADS", "--max-num-tokens", "AUTHOR", ""]
)
def test_names_that_only_sound_like_secrets_are_shown(name: str) -> None:
    assert not is_secret(name)
    assert not is_secret_variable(name)


@pytest.mark.parametrize("name", ["MISTRAL_KEY", "TOKEN_OF_MINE", "SSH_KEY_ID", "AUTH_HEADER", "SESSION_COOKIE", "PWD"])
def test_a_variable_is_hidden_sooner_than_an_option(name: str) -> None:
    assert is_secret_variable(name)
    assert not is_secret("--sort-key")


def test_values_of_secret_variables_are_masked_wherever_they_stand() -> None:
    env = {"HF_TOKEN": "hunter22", "N": "1", "HOME": "/"}
    assert masked_env(env) == {"HF_TOKEN": MASK, "N": "1", "HOME": "/"}
    argv = ["curl", "Authorization: Bearer hunter22", "--api-key", "abc", "--hf-token=abc", "--max-tokens", "5"]
    assert masked_argv(argv, env) == [
        "curl", f"Authorization: Bearer {MASK}", "--api-key", MASK, f"--hf-token={MASK}", "--max-tokens", "5",
    ]  # fmt: skip
    assert masked_argv([]) == []


def test_user_and_password_of_an_url_are_masked() -> None:
    env = {"DATABASE": "postgres://me:hunter22@db:5432/x", "PAGE": "http://host:80/a@b"}
    assert masked_env(env) == {"DATABASE": f"postgres://{MASK}@db:5432/x", "PAGE": "http://host:80/a@b"}
    assert masked_argv(["--db", env["DATABASE"]]) == ["--db", f"postgres://{MASK}@db:5432/x"]
    assert secret_values(env) == ("me:hunter22",)


def test_a_secret_inside_another_leaves_no_rest_of_it() -> None:
    secrets = secret_values({"A_TOKEN": "hunter22", "B_TOKEN": "hunter22-and-more", "SHORT_KEY": "1"})
    assert masked("said hunter22-and-more and hunter22 and 1", secrets) == f"said {MASK} and {MASK} and 1"


@given(st.text(), st.dictionaries(st.sampled_from(["X_TOKEN", "Y_KEY", "N"]), st.text(min_size=5)))
def test_no_masked_text_holds_a_secret(text: str, env: dict[str, str]) -> None:
    secrets = secret_values(env)
    shown = masked(text + "".join(env.values()), secrets)
    assert not any(secret in shown for secret in secrets if MASK not in secret and "*" not in secret)
