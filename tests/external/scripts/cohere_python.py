"""Cohere's own client: reranking. Arguments: the addresses of the example and of models in trouble, and the file in
which these note what ran."""

import pathlib
import sys

import cohere
from cohere.core.api_error import ApiError

example, trouble, runs = sys.argv[1:]


def refused(client, **arguments):
    try:
        client.rerank(**arguments)
    except ApiError as error:
        return error
    raise AssertionError(arguments)


client = cohere.ClientV2(api_key="none", base_url=example)
ranked = client.rerank(model="overlap", query="a b", documents=["c", "b a", "a"], top_n=2)
assert [(one.index, one.relevance_score) for one in ranked.results] == [(1, 1.0), (2, 0.5)], ranked
assert ranked.id and ranked.meta.api_version.version == "2"
absent = refused(client, model="absent", query="a", documents=["a"])
assert absent.status_code == 404 and "absent" in absent.body["message"], absent
print("ranked")

# The client repeats every 5xx, whatever its headers say, and this model may not run twice.
client = cohere.ClientV2(api_key="none", base_url=trouble)
failed = refused(client, model="shaky", query="a", documents=["broken"])
assert failed.status_code == 424 and failed.body["message"].endswith("the model is broken"), failed
assert pathlib.Path(runs).read_text(encoding="utf-8").count("shaky") == 1
print("once")
