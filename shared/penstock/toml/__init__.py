"""interim, by the lead; H4's version replaces it"""
from __future__ import annotations
import tomllib, json
from dataclasses import dataclass
from penstock.schema import Column, Schema
from penstock.study import *
from penstock.study import Estimand, Mechanism, PrivacyRequest, Study

@dataclass(frozen=True)
class DictionaryFile:
    schema: Schema

def _v(x):
    return json.dumps(x, ensure_ascii=False)

def dictionary_toml(schema, study=False):
    out = []
    if not study:
        if schema.person: out.append(f"person = {_v(schema.person)}")
        out.append(f"max_rows_per_person = {schema.max_rows_per_person}")
    for c in schema.columns:
        out.append(f"\n[columns.{c.name}]")
        for k, v in c.to_dict().items():
            if k == "name" or v in (None, "", [], False) : continue
            if study and k == "missing": continue
            out.append(f"{k} = {_v(v)}")
    return "\n".join(out) + "\n"

def parse_dictionary(text):
    d = tomllib.loads(text)
    cols = tuple(Column(name=n, **{k: tuple(x) if isinstance(x, list) else x for k, x in c.items()}) for n, c in d.get("columns", {}).items())
    return DictionaryFile(Schema(cols, d.get("person"), d.get("max_rows_per_person", 1)))

def parse_study(text):
    d = tomllib.loads(text)
    s = parse_dictionary(text).schema
    t = d.get("table", {})
    s = Schema(s.columns, t.get("person"), t.get("max_rows_per_person", 1))
    m = dict(d.get("mechanism", {}))
    if "hidden" in m: m["hidden"] = tuple(m["hidden"])
    st = dict(d["study"]); st["sites"] = tuple(st["sites"])
    return Study(schema=s, estimands=tuple(Estimand(**{**e, "adjust": tuple(e.get("adjust", ()))}) for e in d["estimands"]), privacy=PrivacyRequest(**d["privacy"]), mechanism=Mechanism(**m), wire=d.get("wire", "1.0"), **st)

def study_template(schema, *, name, sites, federation, not_before, expires, title="", epsilon=1.0, estimands=()):
    out = ['wire = "1.0"', "[study]"]
    for k, v in dict(name=name, title=title, federation=federation, sites=list(sites), quorum=max(1, len(sites) // 2), deadline_hours=24.0, not_before=not_before, expires=expires).items():
        out.append(f"{k} = {_v(v)}")
    out += ["[table]"] + ([f"person = {_v(schema.person)}"] if schema.person else []) + [f"max_rows_per_person = {schema.max_rows_per_person}"]
    out += ["[privacy]", f"epsilon = {epsilon}", "delta = 1e-5", "[mechanism]", 'name = "maf"', dictionary_toml(schema, True)]
    for e in estimands:
        out.append("[[estimands]]")
        for k, v in dict(name=e.name, model=e.model, outcome=e.outcome, term=e.term, per=e.per, adjust=list(e.adjust)).items():
            out.append(f"{k} = {_v(v)}")
    return "\n".join(out) + "\n"

def dictionary_draft(columns): return "\n".join(f"[columns.{n}]\nkind = \"{k}\"" for n, k in columns.items()) + "\n"
def infer_kind(name, values): return "continuous"
