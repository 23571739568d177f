"""Kinds of KServe, by the models of its own client: each field has to be one of theirs. Arguments: manifests. Prints the
kinds in their order."""

import re
import sys

import kserve
import yaml
from kubernetes import client as kubernetes

KINDS = {
    "serving.kserve.io/v1alpha1 ServingRuntime": "V1alpha1ServingRuntime",
    "serving.kserve.io/v1beta1 InferenceService": "V1beta1InferenceService",
}


def check(name, value, place):
    """Each class has the types of its fields, and their names in a manifest."""
    if inner := re.fullmatch(r"([Ll]ist|[Dd]ict)[\[(](?:str, )?(.+)[\])]", name):
        is_list = inner[1].lower() == "list"
        assert isinstance(value, list if is_list else dict), f"{place}: {value!r}"
        for key, item in enumerate(value) if is_list else value.items():
            check(inner[2], item, f"{place}.{key}")
        return
    model = getattr(kserve, name, None) or getattr(kubernetes, name, None)
    if model is None:
        plain = {"str": str, "int": int, "bool": bool, "object": object}[name]
        assert isinstance(value, plain), f"{place}: {value!r} is no {name}"
        return
    names = {field: attribute for attribute, field in model.attribute_map.items()}
    for field, item in value.items():
        assert field in names, f"{place}: there is no `{field}` in {name}"
        check(model.openapi_types[names[field]], item, f"{place}.{field}")


for file in sys.argv[1:]:
    for manifest in yaml.safe_load_all(open(file, encoding="utf-8")):
        if name := KINDS.get(f"{manifest['apiVersion']} {manifest['kind']}"):
            check(name, manifest, manifest["kind"])
            print(manifest["kind"])
