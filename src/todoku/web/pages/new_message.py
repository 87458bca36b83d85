"""A new message or job, from a form that is made of the job's own schema."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec

from todoku.api.admin.message_acts import (
    EnqueueBody,
    NewMessageResult,
    PublishBody,
    enqueue_job,
    list_jobs,
    publish_message,
)
from todoku.api.problem import Refused
from todoku.core.errors import InvalidMessage
from todoku.engine.jobs.catalogue import Catalogue
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View

FieldKind = Literal["string", "integer", "number", "boolean", "json"]
_SCALARS: Final = ("string", "integer", "number", "boolean")


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the form: a parameter of the job, or a field of the event, and the text in it."""

    name: str
    kind: FieldKind
    required: bool
    hint: str
    choices: tuple[str, ...] = ()
    text: str = ""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The other texts of the form."""

    topic: str = ""
    to: str = ""
    key: str = ""
    idempotency_key: str = ""
    delay: str = ""
    priority: str = ""
    why: str = ""


class NewMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """The form of `of`, which is `job:NAME` or `topic:NAME`. `whole`: the payload as one text, if it has no fields."""

    of: str
    catalogue: Catalogue
    description: str
    fields: tuple[FormField, ...]
    whole: str | None
    given: Given
    problems: dict[str, str]


@page("GET", "/new", access="operate")
def show_form(view: View) -> PageAnswer:
    """Shows the form of a job or a topic."""
    catalogue: Catalogue = list_jobs.run(view.context)
    first = [*(f"job:{job.name}" for job in catalogue.jobs), *(f"topic:{event.topic}" for event in catalogue.events)]
    of = view.query.get("of") or next(iter(first), "topic:")
    return view.answer("new.html", _form(catalogue, of, {}))


@page("POST", "/new", access="operate")
def publish(view: View) -> PageAnswer | Redirect:
    """Publishes the message, or shows what is wrong with it, at its field."""
    catalogue: Catalogue = list_jobs.run(view.context)
    form = _form(catalogue, view.form.get("of", "topic:"), view.form)
    payload, problems = _document(form)
    if not problems:
        try:
            result = _publish(view, form, payload)
        except (InvalidMessage, Refused) as error:
            result = NewMessageResult(id=None, duplicate=False, problems={"": str(error)})
        if result.id is not None:
            text = "It was published before; this is that message." if result.duplicate else "It is published."
            return view.redirect(f"/messages/{result.id}", text)
        problems = result.problems
    names = {"delay", "payload", *(field.name for field in form.fields)}
    shown = {name if name in names else "": text if name in names else f"{name} {text}".strip()
             for name, text in problems.items()}  # fmt: skip
    return view.answer("new.html", msgspec.structs.replace(form, problems=shown), status=422)


def _publish(view: View, form: NewMessageView, payload: Any) -> NewMessageResult:
    kind, _, name = form.of.partition(":")
    given, signed = form.given, view.signed()
    options: dict[str, Any] = {
        "key": given.key or None, "idempotency_key": given.idempotency_key or None,
        "delay": given.delay or None, "priority": given.priority or 0,
    }  # fmt: skip
    content: dict[str, Any] = {"job": name, "arguments": payload}
    if kind == "topic":
        content = {"topic": name or given.topic, "payload": payload, "to": given.to or None}
    body_type, run = (EnqueueBody, enqueue_job.run) if kind == "job" else (PublishBody, publish_message.run)
    try:
        body = msgspec.convert(content | options, body_type, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidMessage(str(error)) from None
    checked: NewMessageResult = run(view.context, msgspec.structs.replace(body, dry_run=True), signed.by)
    if checked.problems:
        return checked
    done: NewMessageResult = run(view.context, msgspec.structs.replace(body, why=signed.why), signed.by)
    return done


# ------------------------------------------------------------
# The form of a schema, and the document of a form.


def _form(catalogue: Catalogue, of: str, texts: dict[str, str]) -> NewMessageView:
    """The form. Refused (404): there is no such job here."""
    kind, _, name = of.partition(":")
    schema, description = dict[str, Any](), ""
    if kind == "job":
        job = next((job for job in catalogue.jobs if job.name == name), None)
        if job is None:
            raise Refused(404, f"there is no job {name!r} here", hint="GET /api/v1/jobs lists them")
        schema, description = job.schema, job.description
    for event in catalogue.events:
        if kind == "topic" and event.topic == name:
            schema, description = event.schema, event.description
    given = Given(**{each: texts.get(each, "") for each in Given.__struct_fields__})
    fields = _fields(schema, texts)
    return NewMessageView(
        of=of, catalogue=catalogue, description=description, fields=fields or (),
        whole=texts.get("payload", "{}" if kind == "topic" else "null") if fields is None else None, given=given,
        problems={},
    )  # fmt: skip


def _fields(schema: dict[str, Any], texts: dict[str, str]) -> tuple[FormField, ...] | None:
    """The fields of an object; None: it is none, or any field may be given."""
    found = _resolved(schema, schema)
    if found.get("type") != "object" or "properties" not in found:
        return None
    required = found.get("required", [])
    return tuple(
        _field(name, _resolved(each, schema), name in required, texts.get(f"arg.{name}"))
        for name, each in found["properties"].items()
    )


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The schema behind a reference, and without null, which an empty field means."""
    if (name := schema.get("$ref", "").removeprefix("#/$defs/")) and "$ref" in schema:
        return {**schema.get("$defs", root.get("$defs", {})).get(name, {}), **_kept(schema)}
    kinds = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    if len(kinds) == 1:
        return {**_resolved(kinds[0], root), **_kept(schema)}
    return schema


def _kept(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("default", "description") if name in schema}


def _field(name: str, schema: dict[str, Any], required: bool, given: str | None) -> FormField:
    kind: FieldKind = schema["type"] if schema.get("type") in _SCALARS else "json"
    choices = tuple(each for each in schema.get("enum", ()) if isinstance(each, str))
    if choices:
        kind = "string"
    default = schema.get("default")
    hint = ", ".join(filter(None, (
        schema.get("description", ""), kind if kind != "json" else "JSON", schema.get("format", ""),
        "" if default is None else f"= {json.dumps(default, ensure_ascii=False)}",
    )))  # fmt: skip
    return FormField(
        name=name, kind=kind, required=required, hint=hint, text=given or "",
        choices=("true", "false") if kind == "boolean" else choices,
    )  # fmt: skip


def _document(form: NewMessageView) -> tuple[Any, dict[str, str]]:
    """The payload of the form's texts, and what is no JSON, by field. What is wrong in type is left to the job."""
    problems: dict[str, str] = {}
    if form.whole is not None:
        return _json(form.whole, "payload", problems), problems
    return {each.name: _value(each, problems) for each in form.fields if each.text}, problems


def _value(field: FormField, problems: dict[str, str]) -> Any:
    match field.kind:
        case "string":
            return field.text
        case "json":
            return _json(field.text, field.name, problems)
        case _:
            try:
                return json.loads(field.text)
            except ValueError:
                return field.text


def _json(text: str, name: str, problems: dict[str, str]) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        problems[name] = f"this is not JSON: {error}"
        return None


PAGES: Final = (show_form, publish)
