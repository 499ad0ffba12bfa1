"""Dictionaries and studies as TOML text: parsing, drafts, templates. Text in, text out.

Only :mod:`penstock.study.toml.files` touches a file: size and depth are bounded before it is
parsed.
"""

from penstock.study.toml.choices import mechanism_for, question_for
from penstock.study.toml.codebook import Codebook, read_codebook
from penstock.study.toml.dictionary import FRAME, DictionaryFile, parse_dictionary
from penstock.study.toml.draft import Guess, Roles, dictionary_draft, guess_person, infer_kind
from penstock.study.toml.files import read_file
from penstock.study.toml.study import parse_study
from penstock.study.toml.templates import dictionary_toml, study_template, study_toml

__all__ = [
    "FRAME",
    "Codebook",
    "DictionaryFile",
    "Guess",
    "Roles",
    "dictionary_draft",
    "dictionary_toml",
    "guess_person",
    "infer_kind",
    "mechanism_for",
    "parse_dictionary",
    "parse_study",
    "question_for",
    "read_codebook",
    "read_file",
    "study_template",
    "study_toml",
]
