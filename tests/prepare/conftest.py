import pytest

from autoresearch.prepare.stories import stories
from autoresearch.prepare.tokenizer import Tokenizer

UNICODE = (
    "Größe, naïve café, Ελλάδα, дом, 東京都に行く。 你好世界！ 한국어 "
    "👩\u200d👩\u200d👧 🎉🎉 e\u0301 a\u0308 Z\u0351\u036b\u0343 ﷽ \u200d \U0001f1e9\U0001f1ea\n"
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """V 512, learned from stories and text of many scripts."""
    return Tokenizer.train([*stories(0.2), UNICODE * 20], 512, "gpt4-digits2")
