from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.diagnose.redact import ADDRESS, MASK, USER, redact, redact_document

LETTERS = string.ascii_letters + string.digits
TOKENS = st.text(LETTERS, min_size=20, max_size=40)
AROUND = st.text(string.ascii_lowercase + " \n", max_size=15)  # shorter than a token, so never one


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN={}", "export OPENAI_API_KEY='{}'", "--api-key {}", "--hf-token={}", "Authorization: Bearer {}",
        '"password": "{}"', "https://user:{}@hub.example.org/x", "https://x.example.org/a?X-Amz-Signature={}&y=1",
        "hf_{}", "ghp_{}", "sk-proj-{}", "'api_key': '{}'", "COEXIST_TOKEN={}", "AWS_SECRET_ACCESS_KEY={}",
    ],
)  # fmt: skip
@given(token=TOKENS, before=AROUND, after=AROUND)
def test_no_token_survives_whatever_stands_around_it(text: str, token: str, before: str, after: str) -> None:
    assert token not in redact(f"{before} {text.format(token)} {after}")


@given(name=st.text(string.ascii_lowercase, min_size=3, max_size=12).filter(lambda name: name not in "home users"))
def test_user_names_leave_paths_wherever_they_stand(name: str) -> None:
    cleaned = redact(f"File /home/{name}/x/site.py; cache=/Users/{name}/y", names=[name])
    assert f"/{name}/" not in cleaned
    assert cleaned.count(USER) == 2


@given(st.ip_addresses())
def test_addresses_are_removed(address) -> None:
    if not (address.is_loopback or address.is_unspecified or str(address).endswith("::")):
        assert str(address) not in redact(f"peer {address} is gone")


@pytest.mark.parametrize(
    "text",
    [
        "expecting library version 9.2.0.4 got 9.2.0.5",
        "c10::cuda::SetDevice(int)", "listens on 0.0.0.0:8000", "http://127.0.0.1:8000/health", "[gpu_worker.py:266]",
        "max_num_tokens=8192", "tokens_per_block: 32", "12:01:33 loaded", "_ZN3c105ErrorC2ENS_14SourceLocationESs",
        "std::vector<at::Tensor>", "tokenizer='/models/x'", "libcudart.so.12: cannot open shared object file",
        "GPU-8d6a17ac-0000-4000-8000-000044fe50a7",
    ],
)  # fmt: skip
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert redact(text) == text


def test_private_keys_go_whole() -> None:
    key = "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----"
    assert redact(f"before\n{key}\nafter") == f"before\n{MASK}\nafter"


def test_mail_addresses_and_hosts_of_the_machine_go() -> None:
    assert redact("mail jane.doe@example.org from node17", names=["node17"]) == f"mail {ADDRESS} from {USER}"


def test_a_document_loses_values_under_secret_names_and_keeps_versions() -> None:
    document = {
        "env": {"HF_TOKEN": "abc", "PATH": "/home/jane/bin"},
        "trt_version": "10.3.0.26",
        "list": ["hf_" + "a" * 20],
    }
    assert redact_document(document) == {
        "env": {"HF_TOKEN": MASK, "PATH": f"/home/{USER}/bin"}, "trt_version": "10.3.0.26", "list": [MASK],
    }  # fmt: skip


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_document_keeps_its_shape(document) -> None:
    cleaned = redact_document(document)
    assert type(cleaned) is type(document)
    if isinstance(document, dict):
        assert list(cleaned) == list(document)
