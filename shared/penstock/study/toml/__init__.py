"""Dictionaries and studies as TOML text: parsing, drafts, templates. Text in, text out.

Only :mod:`penstock.study.toml.bounded_files` touches a file: size and depth are bounded
before it is parsed.
"""

from penstock.study.toml.bounded_files import read_file
from penstock.study.toml.choices import mechanism_for, question_for
from penstock.study.toml.codebook import Codebook, read_codebook
from penstock.study.toml.dictionary import FRAME, DictionaryFile, parse_dictionary
from penstock.study.toml.dictionary_draft import (
    Guess,
    Roles,
    draft_dictionary,
    guess_person,
    infer_kind,
)
from penstock.study.toml.study_file import parse_study
from penstock.study.toml.templates import draft_study, write_dictionary, write_study

__all__ = [
    "FRAME",
    "Codebook",
    "DictionaryFile",
    "Guess",
    "Roles",
    "draft_dictionary",
    "draft_study",
    "guess_person",
    "infer_kind",
    "mechanism_for",
    "parse_dictionary",
    "parse_study",
    "question_for",
    "read_codebook",
    "read_file",
    "write_dictionary",
    "write_study",
]
