"""Java discovery for Spark: the first one that is new enough, without the module it may lack."""

import os
import subprocess
import sys

import pytest

import arrowlog
from arrowlog.spark import java

WHOLE = "java.base@17.0.2\njdk.incubator.vector@17.0.2"
TRIMMED = "java.base@21.0.8\njava.sql@21.0.8"
OLD = "java.base@11.0.9\njdk.incubator.vector@11.0.9"


def make(home, modules):
    """A Java that prints its modules, or else its arguments."""
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    listing = (
        f"cat <<'END'\n{modules}\nEND" if modules else "echo 'Unrecognized option' >&2; exit 1"
    )
    script.write_text(
        f'#!/bin/sh\nPATH=/bin:/usr/bin\nif [ "$1" = --list-modules ]; then\n{listing}\nexit\nfi\n'
        'for one do echo "<$one>"; done\n'
    )
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing(monkeypatch, tmp_path):
    """No Java is found until a test adds one."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_has_precedence(monkeypatch, tmp_path):
    one, two = make(tmp_path / "one", WHOLE), make(tmp_path / "two", WHOLE)
    monkeypatch.setenv("PATH", str(two / "bin"))
    assert java.find_java_home() == str(two)
    monkeypatch.setenv("JAVA_HOME", str(one))
    assert java.find_java_home() == str(one)


@pytest.mark.parametrize("bad", [OLD, None, "garbage"])
def test_old_or_invalid_java_is_ignored(monkeypatch, tmp_path, bad):
    monkeypatch.setenv("JAVA_HOME", str(make(tmp_path / "bad", bad)))
    good = make(tmp_path / "good", WHOLE)
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert java.find_java_home() == str(good)


def test_symbolic_link_on_the_path_is_resolved(monkeypatch, tmp_path):
    good = make(tmp_path / "good", WHOLE)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(good / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.find_java_home() == str(good)


def test_trimmed_java_is_run_without_the_missing_module(monkeypatch, tmp_path):
    trimmed = make(tmp_path / "it's trimmed", TRIMMED)
    monkeypatch.setenv("JAVA_HOME", str(trimmed))
    home = java.find_java_home()
    assert home != str(trimmed)
    assert java.find_java_home() == home
    given = [
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "",
        "'",
        "--add-modules=java.sql",
        "*",
    ]
    shown = subprocess.run(
        [f"{home}/bin/java", *given], capture_output=True, text=True, check=True
    ).stdout
    assert shown == "<-Da=b c>\n<>\n<'>\n<--add-modules=java.sql>\n<*>\n"
    assert os.stat(home).st_mode & 0o077 == 0  # no other user can replace it


def test_wrapper_is_deleted_at_exit(tmp_path):
    trimmed = make(tmp_path / "trimmed", TRIMMED)
    code = "from arrowlog.spark.java import find_java_home; print(find_java_home())"
    home = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAVA_HOME": str(trimmed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert "arrowlog-java-" in home
    assert not os.path.exists(home)


@pytest.mark.spark
def test_java_extra_provides_java(monkeypatch):
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    home = java.find_java_home()
    shown = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in shown.stderr


def test_missing_java_raises_with_the_package_to_install():
    with pytest.raises(arrowlog.InvalidRequest, match=r"pip install 'arrowlog\[java\]'"):
        java.find_java_home()
