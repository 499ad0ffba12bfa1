"""Dictionaries and studies as TOML text: parsing, drafts, templates. Pure: text in, text out."""

from penstock.toml.choices import mechanism_for, question_for
from penstock.toml.dictionary import DictionaryFile, parse_dictionary
from penstock.toml.draft import Guess, dictionary_draft, infer_kind
from penstock.toml.study import parse_study
from penstock.toml.templates import dictionary_toml, study_template, study_toml

__all__ = [
    "DictionaryFile",
    "Guess",
    "dictionary_draft",
    "dictionary_toml",
    "infer_kind",
    "mechanism_for",
    "parse_dictionary",
    "parse_study",
    "question_for",
    "study_template",
    "study_toml",
]
