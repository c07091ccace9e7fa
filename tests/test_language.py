"""Terms that the project has replaced by standard ones are not used again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIXES = {
    ".py",
    ".lua",
    ".md",
    ".ts",
    ".tsx",
    ".css",
    ".yaml",
    ".yml",
    ".toml",
    ".mjs",
    ".sh",
    "",
}
# Data, generated files, and this list.
EXCLUDED = re.compile(
    r"tests/test_language\.py|.*/vectors/.*|.*plugins/static/.*|ui/package.*\.json|LICENSE|.*\.json"
)
BANNED = {
    r"(?<![dD]ead[ _-])\bletters?\b(?!,? digits|-spacing)": "dead letter",
    r"\bbur(y|ied|ies|ial|ials)\b": "dead-letter, move to the DLQ",
    r"\bsettle[srd]?\b|\bsettling\b": "ack, complete",
    r"\bkeepers?\b": "heartbeat",
    r"\bdoorbells?\b": "queue trigger",
    r"\bcensus\b": "scan",
    r"\bcrews?\b": "consumer runtime, workers",
    r"\bverdicts?\b": "outcome, check result",
    r"\bwhoever\b|\bsomebody\b|\bnobody\b": "name the component",
    r"\banew\b": "again",
    r"\bwhole numbers?\b": "integer",
    r"\bcolours?\b": "sync or async; color",
    r"\breship\w*\b": "overwrite",
    r"\bfor ever\b": "forever",
    r"\bso (many|often)\b": "N, at most N",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bthe house\b|\brooms?\b": "package, capacity",
    r"\bis dear\b|\bdearest\b": "is slow, is expensive",
    r"\bhand(s|ed)? (off|in|back|over)\b": "enqueue, acknowledge, requeue",
    r"\bhalf a character\b": "unpaired surrogate",
    r"\bof (theirs|ours|yours)\b": "a possessive",
}


def tracked_files() -> list[Path]:
    """Return the text files of the repository that people read."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True
    )
    return [
        ROOT / name
        for name in listed.stdout.splitlines()
        if Path(name).suffix in SUFFIXES and not EXCLUDED.fullmatch(name)
    ]


def read_text(path: Path) -> str:
    """Return the text of a file with wrapped lines joined, so that a term is found across lines."""
    text = path.read_text("utf-8", "replace")
    joined = re.sub(r'"?[ \t]*\n\s*(?:#|--|//|\*)?[ \t]*f?"?', " ", text)
    return re.sub(" {2,}", " ", joined)


TEXTS = {path: read_text(path) for path in tracked_files() if path.is_file()}


@pytest.mark.parametrize("pattern", BANNED, ids=lambda pattern: BANNED[pattern])
def test_replaced_terms_are_not_used(pattern: str) -> None:
    uses = [
        f"{path.relative_to(ROOT)}: ...{text[max(0, match.start() - 60) : match.end() + 40]}..."
        for path, text in TEXTS.items()
        for match in re.finditer(pattern, text)
    ]
    assert not uses, f"write {BANNED[pattern]!r} instead:\n" + "\n".join(uses[:20])
