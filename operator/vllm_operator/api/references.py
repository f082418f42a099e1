"""Other objects in the CR's namespace that a user names."""

from __future__ import annotations

from pydantic import Field

from vllm_operator.api.fields import Key, Name
from vllm_operator.api.schema import ApiModel


class SecretKey(ApiModel):
    """A key of a Secret in the CR's namespace."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(description="Key in the Secret.")
    optional: bool = Field(default=False, description="Whether the Secret or its key may be absent.")


class ConfigMapKey(ApiModel):
    """A key of a ConfigMap in the CR's namespace."""

    name: Name = Field(description="Name of the ConfigMap.")
    key: Key = Field(description="Key in the ConfigMap.")
    optional: bool = Field(default=False, description="Whether the ConfigMap or its key may be absent.")


class ObjectReference(ApiModel):
    """A Secret or ConfigMap in the CR's namespace."""

    name: Name = Field(description="Name of the object.")
    optional: bool = Field(default=False, description="Whether the object may be absent.")


class TokenSecret(ApiModel):
    """The Secret that holds a Hugging Face token."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(default="token", description="Key in the Secret that holds the token.")


class ApiKeySecret(ApiModel):
    """The Secret that holds the key of the engines' API."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(description="Key in the Secret that holds the API key.")


class RayAuthSecret(ApiModel):
    """The Secret that holds the token of a Ray cluster."""

    name: Name = Field(description="Name of the Secret.")
    key: Key = Field(default="auth_token", description="Key in the Secret that holds Ray's token.")


class RayClusterRef(ApiModel):
    """A RayCluster that the user made, in the CR's namespace."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="Name of the RayCluster. Several VLLMDeployments may name the same one.",
    )
    auth_secret: RayAuthSecret | None = Field(
        default=None, description="Token of that Ray cluster; absent when it asks for none."
    )


class LocalReference(ApiModel):
    """Name of an object in the CR's namespace."""

    name: Name
