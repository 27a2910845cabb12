"""Command-line options from option classes: names, types, defaults, limits and help are read from the fields.

A command takes whole groups of options, each annotated with its class:

    @with_options
    def train(source: Source, fit: Annotated[FitOptions, Panel("The run")]) -> None: ...
"""

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from hdccf.config import Options
from hdccf.errors import ConfigError, without_secrets


@dataclass(frozen=True)
class Flag:
    """How a field looks on the command line, where its name and type do not say it."""

    names: str = ""
    """Such as "--min-rating --minimum-rating"; otherwise made of the field's name."""
    metavar: str | None = None
    panel: str | None = None
    """The heading of the help that it stands under."""
    shown: str = ""
    """The default as a text, of an option that `parse` reads."""
    parse: Callable[[str], Any] | None = None
    """What makes the field's value of the text that is typed."""


@dataclass(frozen=True)
class Panel:
    """How a command takes a group: under which heading, only which fields, with which flags."""

    title: str | None = None
    only: tuple[str, ...] = ()
    """All fields where none is named, but for those that are groups themselves."""
    flags: Mapping[str, Flag] = field(default_factory=dict)


@dataclass(frozen=True)
class _Group:
    """A parameter of a command that stands for all fields of its class."""

    kind: type[Options]
    optional: bool
    panel: Panel

    @classmethod
    def of(cls, hint: Any) -> "_Group | None":
        """The group behind an annotation; None where it is an option or argument of its own."""
        panel = Panel()
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            panel = next((note for note in notes if isinstance(note, Panel)), panel)
        optional = get_origin(hint) is UnionType
        kinds = [each for each in get_args(hint) if each is not NoneType] if optional else [hint]
        if len(kinds) != 1 or not (inspect.isclass(kinds[0]) and issubclass(kinds[0], Options)):
            return None
        return cls(kinds[0], optional, panel)

    def fields(self) -> dict[str, FieldInfo]:
        fields = self.kind.model_fields
        plain = [name for name, found in fields.items() if _Group.of(found.annotation) is None]
        return {name: fields[name] for name in self.panel.only or plain}

    def flag(self, name: str) -> Flag:
        """Of a field: what the command says, or else the class, or else its name."""
        notes = self.kind.model_fields[name].metadata
        own = next((note for note in notes if isinstance(note, Flag)), Flag())
        return self.panel.flags.get(name, own)

    def option(self, name: str) -> str:
        """The option's first name, such as --ray-address."""
        return (self.flag(name).names or "--" + name.replace("_", "-")).split()[0]

    def parameter(self, name: str) -> inspect.Parameter:
        """The parameter that Typer makes an option of."""
        found, shape = self.kind.model_fields[name], self.flag(name)
        hint: Any = found.annotation
        default = found.default
        if shape.parse is not None:
            hint, default = str, shape.shown
        elif get_origin(hint) is tuple:
            hint, default = list[str] | None, None
        elif found.is_required():
            hint, default = hint | None, None
        limits: dict[str, Any] = {
            name: next((getattr(note, bound) for note in found.metadata if hasattr(note, bound)), None)
            for name, bound in (("min", "ge"), ("max", "le"))
        }
        # A truth value that is off is a mere switch; one that is on, or left open, has a --no- form as well.
        plain = self.option(name)
        both = f"{plain}/--no-{plain[2:]}" if hint in (bool, bool | None) and default is not False else plain
        option = typer.Option(
            *(shape.names or both).split(),
            metavar=shape.metavar,
            help=escape(" ".join((found.description or "").split())),
            rich_help_panel=shape.panel or self.panel.title,
            **limits,
        )
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option]
        )

    def fill(self, given: Mapping[str, Any]) -> Options | None:
        """The group with the options that were given; the class has the defaults of the others."""
        own = {
            name: (self.flag(name).parse or (lambda value: value))(given[name])
            for name in self.fields()
            if name in given
        }
        if self.optional and not own:
            return None
        missing = [name for name, found in self.fields().items() if found.is_required() and name not in own]
        if missing:
            raise ConfigError(
                f"{self.option(next(iter(own)))} goes with {self.option(missing[0])} N; give both or neither"
            )
        return self.kind(**own)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Spreads the groups that a command takes into options, and gives the command the filled groups.

    Only options that were typed are passed on, so `model_fields_set` of a group tells what was given.
    """
    hints = get_type_hints(command, include_extras=True)
    found = {name: _Group.of(hints[name]) for name in inspect.signature(command).parameters}
    groups = {name: group for name, group in found.items() if group is not None}
    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for parameter in inspect.signature(command).parameters.values():
        group = groups.get(parameter.name)
        if group is not None:
            parameters += [group.parameter(name) for name in group.fields()]
        elif parameter.name != "context":
            keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            parameters.append(keyword)

    @wraps(command)
    def run(context: typer.Context, **values: Any) -> None:
        given = {name: value for name, value in values.items() if was_given(context, name)}
        own = {"context": context, **values}
        plain = {name: own[name] for name in found if name not in groups}
        command(**plain, **{name: group.fill(given) for name, group in groups.items()})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def as_typed(*groups: Options) -> str:
    """The options of groups that were given, as they are typed in a shell, without passwords."""
    words: list[str] = []
    for group in groups:
        shape = _Group(type(group), False, Panel())
        for name, value in group.model_dump(exclude_unset=True).items():
            option = shape.option(name)
            if isinstance(value, bool):
                words.append(option.partition("/")[0] if value else f"--no-{option[2:].partition('/')[0]}")
                continue
            if isinstance(value, dict):
                value = ",".join(f"{each}={number:g}" for each, number in value.items())
            words += [option, shlex.quote(without_secrets(str(value)))]
    return " ".join(words)


def was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter was typed, rather than left at its default."""
    return "COMMANDLINE" in str(context.get_parameter_source(name))
