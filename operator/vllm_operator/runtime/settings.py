"""Settings of the process: one YAML file, written by the chart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from vllm_bootstrap.contract import Deadlines
from vllm_operator.clients.address import hub_url
from vllm_operator.lifecycle.recovery import Recovery
from vllm_operator.planning.catalogue import BUILT_IN, Accelerator, Catalogue, Interconnect
from vllm_operator.reconcile.settings import Settings
from vllm_operator.resources.defaults import RuntimeDefaults


class SettingsError(Exception):
    """The settings file is unusable; the message names the file and the field."""


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class Logging(_Section):
    """Log output."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    format: str = Field(default="text", pattern="^(text|json)$")


class LeaderElection(_Section):
    """The Lease that lets one of several replicas work."""

    enabled: bool = True
    lease_name: str = "vllm-operator"
    lease_duration_seconds: float = 15
    renew_deadline_seconds: float = 10
    retry_period_seconds: float = 2


class Port(_Section):
    """A port of the process."""

    port: int = Field(ge=0, le=65535)


class Runtime(_Section):
    """What every CR of this installation gets."""

    image: str = ""
    ray_version: str = "2.60.0"
    pod_template: dict[str, Any] = Field(default_factory=dict)


class DeadlineOverrides(_Section):
    """Deadlines in seconds; absent ones keep their default."""

    ray_nodes: float | None = None
    placement: float | None = None
    load: float | None = None
    cleanup: float | None = None
    stall: float | None = None


class RecoverySettings(_Section):
    """Backoff between attempts, and patience with the scheduler, in seconds."""

    backoff_seconds: float = Field(default=5.0, gt=0)
    max_backoff_seconds: float = Field(default=300.0, gt=0)
    unscheduled_seconds: float = Field(default=180.0, gt=0)


class AcceleratorEntry(_Section):
    """A kind of GPU, before those that the operator knows."""

    product: str = Field(min_length=1)
    memory_gib: float = Field(gt=0)
    price: float = Field(gt=0)
    interconnect: Interconnect = Interconnect.PCIE
    classes: list[str] = Field(default_factory=list)

    def entry(self) -> Accelerator:
        """Give it as the planner wants it."""
        return Accelerator(
            product=self.product,
            memory_gib=self.memory_gib,
            price=self.price,
            interconnect=self.interconnect,
            classes=tuple(self.classes),
        )


class HubSettings(_Section):
    """The hub that is asked about models: here and not in the CR, for tokens go there."""

    enabled: bool = True
    endpoint: str = "https://huggingface.co"

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        return hub_url(value)


class ProcessSettings(_Section):
    """The whole file."""

    watch_namespaces: list[str] = Field(default_factory=list)
    concurrency: int = Field(default=8, ge=1, le=256)
    resync_seconds: float = Field(default=300.0, ge=10)
    logging: Logging = Field(default_factory=Logging)
    leader_election: LeaderElection = Field(default_factory=LeaderElection)
    probes: Port = Field(default_factory=lambda: Port(port=8080))
    metrics: Port = Field(default_factory=lambda: Port(port=9090))
    runtime: Runtime = Field(default_factory=Runtime)
    deadlines: DeadlineOverrides = Field(default_factory=DeadlineOverrides)
    recovery: RecoverySettings = Field(default_factory=RecoverySettings)
    accelerators: list[AcceleratorEntry] = Field(default_factory=list)
    hub: HubSettings = Field(default_factory=HubSettings)

    def decisions(self) -> Settings:
        """Give the part that decisions depend on."""
        overrides = {key: value for key, value in self.deadlines.model_dump().items() if value is not None}
        return Settings(
            defaults=RuntimeDefaults(
                image=self.runtime.image,
                ray_version=self.runtime.ray_version,
                pod_template=self.runtime.pod_template,
            ),
            recovery=Recovery(
                backoff_seconds=self.recovery.backoff_seconds,
                max_backoff_seconds=self.recovery.max_backoff_seconds,
                unscheduled_seconds=self.recovery.unscheduled_seconds,
            ),
            deadlines=dataclasses.replace(Deadlines(), **overrides),
            hub=self.hub.endpoint,
            catalogue=Catalogue(accelerators=(*(item.entry() for item in self.accelerators), *BUILT_IN.accelerators)),
        )


def read_settings(path: Path | None) -> ProcessSettings:
    """Read the settings file; all defaults without one.

    Raises
    ------
    SettingsError
        The file is not there, is no YAML, or has an unknown or wrong field.
    """
    if path is None:
        return ProcessSettings()
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return ProcessSettings.model_validate(data)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: no YAML: {error}") from error
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}" for item in error.errors())
        raise SettingsError(f"{path}: {told}") from error
