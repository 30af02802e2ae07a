"""The verdict of a study in sentences, for its page and the index. `findings.answer` has its facts."""

from dataclasses import dataclass

from steptrace.documents.answer import Tone
from steptrace.documents.comparison import Comparison
from steptrace.findings.answer import answer_of
from steptrace.words.answer import advice_in_words, checks_of, reason_of, sentences_of, syncs_of


@dataclass(frozen=True)
class StudyVerdict:
    """The result of a study. Names are in backticks; pages show them as code.

    Attributes:
        sentences: which variant is faster, by how much and how sure; then the other variants, and what failed.
        reason: why; may be empty.
        syncs: the syncs of all variants, where the reason does not name them; may be empty.
        checks: whether all compute the same, broken gates.
        advice: what to do; may be empty.
        use: the variant to use; None if there is none to recommend.
        tone: `bad` if nothing was measured, `care` if a gate is broken or the fastest cannot be used.
    """

    sentences: tuple[str, ...]
    reason: str
    syncs: str
    checks: tuple[str, ...]
    advice: str
    use: str | None
    tone: Tone

    @property
    def sentence(self) -> str:
        """All sentences as one text."""
        return " ".join(self.sentences)

    @property
    def details(self) -> tuple[str, ...]:
        """The reason, the syncs and the checks."""
        return tuple(filter(None, (self.reason, self.syncs, *self.checks)))


def verdict_of(study: Comparison) -> StudyVerdict:
    """The verdict on a study. Without a GPU the estimates decide, if there are some that tell variants apart."""
    answer = answer_of(study)
    return StudyVerdict(
        sentences=sentences_of(answer),
        reason=reason_of(answer),
        syncs=syncs_of(answer),
        checks=checks_of(answer),
        advice=" ".join(advice_in_words(answer.advice)),
        use=answer.use,
        tone=answer.tone,
    )
