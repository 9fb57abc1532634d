"""Which extra of the package brings an optional module: the one table behind every message about a missing package."""

from __future__ import annotations

from audit.errors import MissingExtra

#: Modules that audit imports only where a command needs them, and the extra that installs each.
EXTRAS = {
    "timm": "timm",
    "safetensors": "safetensors",
    "datasets": "hf",
    "pandas": "pandas",
    "scipy": "checks",
    "boto3": "s3",
    "botocore": "s3",
    "gcsfs": "gcs",
    "adlfs": "azure",
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "transformers",
    "huggingface_hub": "transformers",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard",
    "openlineage": "openlineage",
    "wandb": "wandb",
    "ray": "ray",
    "cryptography": "sign",
    "onnxruntime": "onnx",
    "sklearn": "embed",
    "umap": "embed",
}
#: Packages whose name differs from that of their module.
_PACKAGES = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "mlflow": "mlflow-skinny",
}


def missing_extra(error: ModuleNotFoundError, purpose: str) -> MissingExtra | None:
    """Return the sentence for a module that is not installed; None for one of audit's own, which is a defect."""
    module = (error.name or "").split(".")[0]
    if not module or module == "audit":
        return None
    return MissingExtra(_PACKAGES.get(module, module), purpose, EXTRAS.get(module))
