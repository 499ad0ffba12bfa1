"""How ``recoding.toml`` is read and checked against the dictionary whose columns it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.base.checks import Checks, closest, nearest, shown, unknown_keys, within
from penstock.base.documents import Json, JsonView
from penstock.base.errors import Problem
from penstock.schema import NUMBER_KINDS, Column, Schema
from penstock.study.toml.reader import as_text, read_toml
from penstock_client.rows.codes import Codes, parse_whole
from penstock_client.rows.dates import FORM_BOUND, ISO, UNITS, DateForm
from penstock_client.rows.recoding import Recoding, Rule
from penstock_client.rows.sources.layout import DELIMITERS, ENCODINGS, PLAIN, Layout

DECIMALS = (".", ",")
THOUSANDS = (".", ",", "'", "’", " ")
MAX_SOURCES = 10
MAX_VALUES = 10_000
_SOURCE = ("delimiter", "encoding", "decimal", "thousands", "missing", "trim", "ignore_case",
           "date")  # fmt: skip
_COLUMN = ("from", "again", "values", "present", "since", "in", "since_date", "times", "decimal",
           "thousands", "missing", "trim", "ignore_case", "date")  # fmt: skip
_NUMBERS_ONLY = ("decimal", "thousands", "times")
_NO_DATES = ("values", "ignore_case", *_NUMBERS_ONLY)
_DATES_ONLY = ("in", "date", "since_date")
_TABS = {"tab": "\t", "semicolon": ";", "comma": ",", "bar": "|"}


def parse_recoding(text: str, schema: Schema, what: str = "recoding") -> Recoding:
    """Parse a recoding's TOML text against the dictionary whose columns it is about.

    ::

        [source]
        delimiter = ";"
        encoding = "windows-1252"
        decimal = ","
        date = "dd.mm.yyyy"
        missing = [-9, "NA", "."]
        [columns.sex]
        from = "Geschlecht"
        values = { 1 = "male", 2 = "female" }
        [columns.time]
        from = ["died_on", "last_seen"]   # the first of them that is not blank
        since = "randomised_on"
        in = "days"
        [columns.died]
        from = "died_on"
        present = true                    # 1 where a date stands, 0 where the cell is blank

    Raises:
        InvalidInput: with every problem and its line: unknown keys and columns, targets that are
            no level or out of bounds, ambiguous dates, a column of the file that two columns are
            read from without ``again = true``.
    """
    values, lines = read_toml(text, what)
    check = Checks(what)
    check.problems += unknown_keys(values, ("source", "columns"))
    layout, general = _read_source(check, values.get("source", {}))
    tables = values.get("columns", {})
    if not isinstance(tables, Mapping):
        check.add("columns", "is not a table", remedy="Recode each column in [columns.NAME]")
        tables = {}
    names = (*schema.names, *((schema.person,) if schema.person else ()))
    rules: dict[str, Rule] = {}
    for name, table in tables.items():
        where = f"columns.{name}"
        if name not in names:
            remedy = nearest(name, names)
            check.add(where, "is no column of dictionary.toml", remedy=remedy)
        elif not isinstance(table, Mapping):
            check.add(where, "must be a table", value=shown(table))
        else:
            own = Checks(what)
            column = schema[name] if name in schema.names else None
            rules[name] = _read_rule(own, name, table, column, general)
            check.problems += within(where, own.problems)
    if schema.person is not None:
        rules[schema.person] = _make_person_rule(rules.get(schema.person), schema.person, general)
    recoding = Recoding(layout, rules, general, text)
    if not check.problems:
        _refuse_shared(check, recoding, schema)
        _refuse_codes_for_all(check, recoding, schema)
    check.problems = lines.locate(check.problems)
    check.done()
    return recoding


def _read_source(check: Checks, table: object) -> tuple[Layout, Rule]:
    """The file's layout, and what holds for all of its columns."""
    if not isinstance(table, Mapping):
        check.add("source", "must be a table", value=shown(table))
        return PLAIN, Rule(())
    own = Checks(check.what)
    own.problems += unknown_keys(table, _SOURCE)
    delimiter = table.get("delimiter")
    if delimiter is not None:
        delimiter = _TABS.get(delimiter, delimiter) if isinstance(delimiter, str) else delimiter
        bound = 'one of "," ";" "\\t" "|"'
        if not (isinstance(delimiter, str) and delimiter in DELIMITERS):
            own.add("delimiter", "is unknown", value=shown(delimiter), bound=bound)
            delimiter = None
    encoding = table.get("encoding", PLAIN.encoding)
    if isinstance(encoding, str):
        encoding = encoding.casefold().replace("_", "-")
    encoding = own.choice("encoding", encoding, tuple(ENCODINGS)) or PLAIN.encoding
    general = _read_general(own, Rule(()), table)
    check.problems += within("source", own.problems)
    return Layout(delimiter, encoding), general


def _read_general(check: Checks, rule: Rule, table: JsonView) -> Rule:
    """The rule with what a table says of cells in general."""
    changes: Json = {}
    for name in ("trim", "ignore_case"):
        if name in table:
            changes[name] = bool(check.flag(name, table[name]))
    if "missing" in table:
        changes["missing"] = tuple(dict.fromkeys((*rule.missing, *_read_missing(check, table))))
    if "decimal" in table:
        changes["decimal"] = check.choice("decimal", table["decimal"], DECIMALS) or "."
    if "thousands" in table:
        changes["thousands"] = check.choice("thousands", table["thousands"], THOUSANDS) or ""
    decimal = changes.get("decimal", rule.decimal)
    thousands = changes.get("thousands", rule.thousands)
    if decimal == thousands:
        remedy = "Say how the file writes 1234.5"
        check.add("thousands", "is the decimal mark too", value=shown(decimal), remedy=remedy)
    if "date" in table:
        changes["date"] = changes["since_date"] = _read_date_form(check, "date", table["date"])
    if "since_date" in table:
        changes["since_date"] = _read_date_form(check, "since_date", table["since_date"])
    return replace(rule, **changes)


def _read_missing(check: Checks, table: JsonView) -> list[str]:
    given = table["missing"]
    if not isinstance(given, list):
        check.add("missing", "must be a list", value=shown(given), bound='such as [-9, "NA", "."]')
        return []
    codes = [as_text(code) for code in given]
    return [c for c in codes if check.text("missing", c, 64) is not None and isinstance(c, str)]


def _read_date_form(check: Checks, where: str, given: object) -> DateForm:
    try:
        if isinstance(given, str):
            return DateForm(given)
        why = "must be text"
    except ValueError as error:
        why = str(error)
    remedy = None
    if "two ways" in why:
        remedy = "Export the dates with four digits of the year"
    check.add(where, why, value=shown(given), bound=FORM_BOUND, remedy=remedy)
    return DateForm(ISO)


def _read_rule(
    check: Checks, name: str, table: JsonView, column: Column | None, general: Rule
) -> Rule:
    """One column's rule; None for ``column`` is the person column."""
    check.problems += unknown_keys(table, _COLUMN)
    sources = _read_sources(check, name, table.get("from", name))
    rule = replace(general, sources=sources)
    if column is None:
        rule = replace(rule, missing=())
        for key in table.keys() & set(_COLUMN) - {"from", "missing"}:
            remedy = "An identifier is taken as it stands: only `from` and `missing` can be said"
            check.add(key, "has no meaning for the person column", remedy=remedy)
        return _read_general(check, rule, {k: v for k, v in table.items() if k == "missing"})
    if "again" in table:
        rule = replace(rule, again=bool(check.flag("again", table["again"])))
    if "present" in table:
        rule = replace(rule, present=bool(check.flag("present", table["present"])))
    rule = _read_general(check, rule, table)
    _check_meaning(check, table, column, rule)
    if "since" in table and not column.levels:
        since = check.text("since", table["since"], 200)
        if (unit := table.get("in")) is None:
            check.add("in", "is missing", bound=f"one of {', '.join(UNITS)}")
        else:
            unit = check.choice("in", unit, UNITS)
        rule = replace(rule, since=since, unit=unit or "days")
    if "times" in table:
        times = check.number("times", table["times"], "a number that is not 0")
        if times == 0:
            check.add("times", "is 0", bound="a number that is not 0")
        rule = replace(rule, times=times or 1.0)
    if "values" in table:
        rule = replace(rule, values=_read_values(check, table["values"], column, rule))
    elif column.levels:
        _refuse_levels_as_missing(check, column, rule, table)
    return rule


def _read_sources(check: Checks, name: str, given: object) -> tuple[str, ...]:
    listed = given if isinstance(given, list) else [given]
    if not 1 <= len(listed) <= MAX_SOURCES:
        bound = f"one column of the file, or a list of up to {MAX_SOURCES}"
        check.add("from", "has the wrong length", value=shown(given), bound=bound)
        return (name,)
    found = [check.text("from", one, 200) for one in listed]
    check.distinct("from", listed)
    return tuple(one for one in found if one is not None) or (name,)


def _check_meaning(check: Checks, table: JsonView, column: Column, rule: Rule) -> None:
    """Refuse keys that say nothing here: each is a misunderstanding or a typo."""

    def refuse(keys: Sequence[str], why: str, remedy: str | None = None) -> None:
        for key in keys:
            if key in table:
                check.add(key, f"has no meaning {why}", remedy=remedy)

    numbers = column.kind in NUMBER_KINDS
    if not numbers:
        why = f"for kind {column.kind!r}"
        refuse(("since", *_DATES_ONLY, *_NUMBERS_ONLY), why, "Remove it, or correct the kind")
    elif "since" in table:
        refuse(_NO_DATES, "beside `since`", "Remove it")
    else:
        refuse(_DATES_ONLY, "without `since`", "Name the column of the file to count from")
        if "values" not in table:
            refuse(("ignore_case",), "for numbers", "Remove it")
    if rule.present:
        refuse(("values", "ignore_case"), "beside `present`", "Remove one of the two")
        if column.levels != ("0", "1"):
            check.add("present", "gives 1 and 0", bound="a column whose levels are 0 and 1")


def _read_values(check: Checks, given: object, column: Column, rule: Rule) -> dict[str, str]:
    """The map from what stands in the file to levels, or to numbers within the bounds."""
    if not (isinstance(given, Mapping) and 0 < len(given) <= MAX_VALUES):
        bound = 'a table such as { 1 = "male", 2 = "female" }'
        check.add("values", "must be a table that is not empty", value=shown(given), bound=bound)
        return {}
    found: dict[str, str] = {}
    missing = Codes((*rule.missing, *column.missing), ignore_case=rule.ignore_case)
    seen: dict[str, str] = {}
    for raw, target in given.items():
        where, key = f"values.{raw}", " ".join(raw.split()) if rule.trim else raw.strip()
        folded = key.casefold() if rule.ignore_case else key
        if not key:
            remedy = "A blank cell is missing; for 0 and 1 say present = true"
            check.add(where, "is blank", remedy=remedy)
        elif folded in seen:
            check.add(where, f"says the same as {shown(seen[folded])}", remedy="Keep one")
        elif missing.find(key) is not None:
            check.add(where, "is in `missing` too", remedy="Keep one of the two")
        elif isinstance(target, Mapping):
            remedy = f'Quote what has a dot: "{raw}.…" = …'
            check.add(where, "is a table", value=shown(target), remedy=remedy)
        elif (text := _read_target(check, where, target, column)) is not None:
            found[key] = text
        seen.setdefault(folded, raw)
    return found


def _read_target(check: Checks, where: str, target: object, column: Column) -> str | None:
    """What a value means: a level of the column, or a number within its bounds."""
    if isinstance(target, bool):
        check.add(where, "must be text or a number", value=shown(target), remedy="Write 1 or 0")
        return None
    text = as_text(target)
    if column.levels:
        if isinstance(text, str) and text in column.levels:
            return text
        check.add(
            where,
            "is mapped to what is no level",
            value=shown(text),
            bound=f"one of {', '.join(column.levels)}"[:200],
            remedy=closest(text, column.levels) if isinstance(text, str) else None,
        )
        return None
    low, high = column.bounds
    bound = f"a number from {low:g} to {high:g}, the column's bounds"
    number = check.number(
        where, text if (n := parse_number(str(text))) is None else n, bound, least=low, most=high
    )
    return None if number is None else str(text)


def parse_number(text: str) -> float | None:
    """A number written with a point; None for what is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _refuse_levels_as_missing(check: Checks, column: Column, rule: Rule, table: JsonView) -> None:
    own_case = rule.ignore_case and "ignore_case" in table
    levels = Codes(column.levels, ignore_case=rule.ignore_case)
    if own_case and len(levels) < len(column.levels):
        remedy = "Remove ignore_case, or say each of them in `values`"
        check.add("ignore_case", "makes two levels one", remedy=remedy)
    for code in rule.missing if "missing" in table else ():
        if levels.find(code) is not None:
            check.add("missing", "is a level too", value=shown(code), bound="one or the other")


def _make_person_rule(rule: Rule | None, name: str, general: Rule) -> Rule:
    """How ids are read: of what means "missing" everywhere, no number, since ids are numbers."""
    texts = tuple(code for code in general.missing if parse_whole(code) is None)
    found = rule or Rule((name,))
    return replace(found, missing=(*found.missing, *texts))


def _refuse_codes_for_all(check: Checks, recoding: Recoding, schema: Schema) -> None:
    """Refuse codes for "missing" in every column that mean something in one of them."""
    for column in schema.columns:
        rule = recoding.rule(column.name)
        if rule.mode != "value" or rule.values:
            continue
        if column.levels:
            folded = {level.casefold() for level in column.levels}
            if rule.ignore_case and len(folded) < len(column.levels):
                remedy = "Say ignore_case in the columns that need it"
                message = f"makes two levels of {column.name} one"
                check.add("source.ignore_case", message, remedy=remedy)
            levels = Codes(column.levels, ignore_case=rule.ignore_case)
            known = [code for code in recoding.general.missing if levels.find(code) is not None]
            bound = f"no level of {column.name}"
        else:
            low, high = column.bounds
            numbers = {code: parse_number(code) for code in recoding.general.missing}
            known = [c for c, x in numbers.items() if x is not None and low <= x <= high]
            bound = f"outside the bounds of {column.name}, {low:g} to {high:g}"
        known = [code for code in known if code not in column.missing]
        for code in known:
            remedy = "Say it under `missing` of the columns in which it means that"
            message = "would be missing in every column"
            check.add("source.missing", message, value=shown(code), bound=bound, remedy=remedy)


def _refuse_shared(check: Checks, recoding: Recoding, schema: Schema) -> None:
    """Two columns from one of the file's, where nobody said that it is meant."""
    users: dict[tuple[str, str], list[str]] = {}
    for name in schema.names:
        rule = recoding.rule(name)
        users.setdefault((rule.sources[0], rule.mode), []).append(name)
        if schema.person is not None and recoding.rule(schema.person).sources[0] in rule.reads:
            remedy = "Read it from another column: an identifier is never modelled"
            check.add(f"columns.{name}.from", "is the person column", remedy=remedy)
    for (source, _), names in users.items():
        unsaid = [name for name in names if not recoding.rule(name).again]
        if len(unsaid) < 2:
            continue
        named = [name for name in unsaid if name in recoding.rules] or unsaid
        check.problems.append(
            Problem(
                f"columns.{named[-1]}.from",
                f"{' and '.join(unsaid)} are read from the same column of the file",
                value=shown(source),
                bound="each from its own",
                remedy="Correct one of them; or, if it is meant, add again = true to it",
            )
        )
