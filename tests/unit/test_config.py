"""Options: what is allowed, and which source wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.config import (
    PROJECT_FILE,
    StoreOptions,
    find_place,
    option_names,
    resolve_options,
    resolve_place,
)
from durastore.errors import ConfigError
from durastore.store.opening import OptionOverrides
from durastore.texts import expanded, parse_size

GIB = 1 << 30


def _user_env(home: Path, text: str, **variables: str) -> dict[str, str]:
    folder = home / ".config" / "durastore"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return {"HOME": str(home), **variables}


def test_precedence_explicit_env_project_user_default(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / PROJECT_FILE).write_text('region = "project"\nprofile = "project"\nstall_s = 7\n', encoding="utf-8")
    environ = _user_env(
        tmp_path / "home",
        'region = "user"\nprofile = "user"\nstall_s = 9.0\nseal_age_s = 5',
        DURASTORE_REGION="env",
        DURASTORE_ENDPOINT_URL="http://127.0.0.1:1",
    )
    options = resolve_options(
        {"endpoint_url": "http://127.0.0.1:2", "region": None}, environ=environ, project_dir=project
    )
    assert options.endpoint_url == "http://127.0.0.1:2"
    assert options.region == "env"
    assert options.profile == "project"
    assert options.stall_s == 7
    assert options.seal_age_s == 5
    assert options.settle_s == StoreOptions().settle_s


def test_nothing_given_means_defaults(tmp_path: Path) -> None:
    assert resolve_options({}, environ={}, project_dir=tmp_path) == StoreOptions()


def test_environment_values_get_their_types(tmp_path: Path) -> None:
    environ = {
        "DURASTORE_HIGH_WATERMARK_BYTES": "100 GiB",
        "DURASTORE_SETTLE_S": "0",
        "DURASTORE_IS_ANY_FILESYSTEM_ALLOWED": "yes",
        "DURASTORE_RECLAIM_BATCH_PACKS": "3",
        "DURASTORE_PROFILE": "",
        "DURASTORE_TEST_SEED": "1",
        "PATH": "/bin",
    }
    options = resolve_options({}, environ=environ, project_dir=tmp_path)
    assert options.high_watermark_bytes == 100 * GIB
    assert options.low_watermark_bytes == 75 * GIB  # follows, because it was not given
    assert options.settle_s == 0
    assert options.is_any_filesystem_allowed is True
    assert options.reclaim_batch_packs == 3
    assert options.profile is None


@pytest.mark.parametrize(
    "text, size", [("0", 0), ("17", 17), ("1.5GiB", 3 * GIB // 2), ("2 mib", 2 << 20), ("1TiB", 1 << 40), ("5B", 5)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1GB", "1 2", "GiB", "0x10", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    "values, named",
    [
        ({"reclaim": "always"}, "reclaim"),
        ({"transport": "carrier-pigeon"}, "transport"),
        ({"settle_s": -1}, "settle_s"),
        ({"settle_s": float("nan")}, "settle_s"),
        ({"stall_s": 0}, "stall_s"),
        ({"stall_s": True}, "stall_s"),
        ({"reclaim_batch_packs": 1.5}, "reclaim_batch_packs"),
        ({"is_any_filesystem_allowed": "yes"}, "is_any_filesystem_allowed"),
        ({"region": ""}, "region"),
        ({"audit_share": 1.01}, "audit_share"),
        ({"audit_share": -0.1}, "audit_share"),
        ({"high_watermark_bytes": 1, "low_watermark_bytes": 2}, "low_watermark_bytes"),
        ({"kms_key": "k"}, "kms_key"),
        ({"storage_class": "DEEP_ARCHIVE"}, "storage_class"),
        ({"endpoint_url": "127.0.0.1:80"}, "endpoint_url"),
        ({"endpoint_url": "ftp://host"}, "endpoint_url"),
        ({"endpoint_url": "http://host:99999"}, "endpoint_url"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve_options(values, environ={}, project_dir=tmp_path)


def test_unknown_names_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="endpoint_ulr"):
        resolve_options({"endpoint_ulr": "http://h"}, environ={}, project_dir=tmp_path)
    with pytest.raises(ConfigError, match="endpont_url"):
        resolve_options({}, environ={"DURASTORE_ENDPONT_URL": "http://h"}, project_dir=tmp_path)
    (tmp_path / PROJECT_FILE).write_text("[s3]\nregion = 'x'\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="s3"):
        resolve_options({}, environ={}, project_dir=tmp_path)


@pytest.mark.parametrize("name", ["aws_access_key_id", "secret_access_key", "session_token", "password"])
def test_credentials_in_a_file_are_refused_and_not_repeated(name: str, tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text(f'{name} = "hunter2"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="credential") as caught:
        resolve_options({}, environ={}, project_dir=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_credentials_in_an_endpoint_are_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="credentials") as caught:
        resolve_options({"endpoint_url": "http://me:hunter2@host"}, environ={}, project_dir=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_broken_file_is_refused_without_quoting_it(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text('region = "hunter2\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="TOML") as caught:
        resolve_options({}, environ={}, project_dir=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_every_option_can_be_set_in_a_file(tmp_path: Path) -> None:
    values = {"sse": "aws:kms", "kms_key": "k", "region": "r", "is_any_filesystem_allowed": True, "settle_s": 1.5}
    assert set(values) <= set(option_names())
    lines = [f"{k} = {str(v).lower() if isinstance(v, bool | float) else repr(v)}" for k, v in values.items()]
    (tmp_path / PROJECT_FILE).write_text("\n".join(lines), encoding="utf-8")
    options = resolve_options({}, environ={}, project_dir=tmp_path)
    assert {name: getattr(options, name) for name in values} == values


def test_places_follow_the_same_precedence(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text('bucket = "s3://file"\nlocal = "/file"\n', encoding="utf-8")
    environ = {"DURASTORE_BUCKET": "s3://env"}
    assert resolve_place("bucket", "s3://flag", environ=environ, project_dir=tmp_path) == "s3://flag"
    assert resolve_place("bucket", None, environ=environ, project_dir=tmp_path) == "s3://env"
    assert resolve_place("local", None, environ=environ, project_dir=tmp_path) == "/file"
    assert resolve_place("local", None, environ={}, project_dir=tmp_path / "none") is None


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs/operations/options.md").read_text(encoding="utf-8")
    assert [name for name in option_names() if f"`{name}`" not in text] == []


def test_every_option_is_one_of_open_for_a_type_checker() -> None:
    assert set(OptionOverrides.__annotations__) == {*option_names(), "clock", "observer", "objects"}


@pytest.mark.parametrize(
    "text, words",
    [
        ('settle_s = "soon"', "settle_s takes seconds, as a number, not 'soon'"),
        ('high_watermark_bytes = "64 gigs"', "takes bytes, or a size such as \"64 GiB\", not '64 gigs'"),
        ('reclaim = "x"', "durastore.toml: option reclaim is 'x'"),
        ("settle_s = -1", "durastore.toml: option settle_s is -1"),
        ("region = 5", "option region takes a text, not int"),
        ("a = 1\nlocal = /nvme", r"is not valid TOML \(line 2, column 9\)"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_where_and_what_it_takes(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / PROJECT_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        resolve_options({}, environ={}, project_dir=tmp_path)
    assert caught.value.hint
    assert str(tmp_path / PROJECT_FILE) in caught.value.message


def test_a_choice_given_in_code_is_not_blamed_on_a_file(tmp_path: Path) -> None:
    (tmp_path / PROJECT_FILE).write_text('reclaim = "eager"', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve_options({"reclaim": "x"}, environ={}, project_dir=tmp_path)
    assert PROJECT_FILE not in caught.value.message


def test_a_home_folder_is_meant_where_no_shell_has_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/spool") == tmp_path / "spool"
    (tmp_path / PROJECT_FILE).write_text('local = "~/spool"', encoding="utf-8")
    found = find_place("local", None, environ={}, project_dir=tmp_path)
    assert found is not None
    assert found.text == str(tmp_path / "spool")
    with pytest.raises(ConfigError, match="write the whole path"):
        expanded("~nobody-of-that-name/spool")
