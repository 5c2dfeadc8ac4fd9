"""The answer book: a service's bounded memory of the commands it has answered."""

from mosaic_bus.service import answers
from mosaic_bus.service.answers import AnswerBook


def test_command_is_begun_once_and_its_answer_kept():
    book = AnswerBook()
    assert book.begin("a")
    assert not book.begin("a")
    assert book.find("a") is None
    book.finish("a", b"done")
    assert not book.begin("a")
    assert book.find("a") == b"done"


def test_abandoned_command_may_be_tried_again():
    book = AnswerBook()
    book.begin("a")
    book.abandon("a")
    assert book.begin("a")


def test_memory_is_bounded_and_large_answers_go_before_small_ones():
    book = AnswerBook()
    book.finish("small", b"x")
    for number in range(100):
        book.finish(f"large{number}", bytes(1024 * 1024))
    assert book.find("small") == b"x"
    assert book.find("large0") is None
    assert book.find("large99") is not None
    assert book._large_bytes <= answers._MOST_LARGE_BYTES
    for number in range(answers._MOST_ANSWERS):
        book.finish(str(number), b"x")
    assert book.find("small") is None
    assert len(book._small) == answers._MOST_ANSWERS


def test_answer_larger_than_all_that_is_kept_can_still_be_sent():
    book = AnswerBook()
    book.finish("a", bytes(1024 * 1024))
    book.finish("b", bytes(answers._MOST_LARGE_BYTES + 1))
    assert book.find("b") is not None
    book.finish("c", bytes(1024 * 1024))
    assert (book.find("b"), book._large_bytes) == (None, 1024 * 1024)
