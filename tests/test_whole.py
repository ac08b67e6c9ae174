"""Files that are there whole or not at all."""

import pytest

from contrastive.whole import whole_file


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    target = tmp_path / "numbers"
    target.write_text("old")
    with whole_file(target) as path:
        path.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "numbers"
    target.write_text("old")

    def stop_half_way():
        with whole_file(target) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "no" / "numbers") as path:
        path.write_text("")
