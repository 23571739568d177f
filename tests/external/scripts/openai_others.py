"""Other libraries that speak OpenAI's API. Arguments: the base URLs of the example and of models in trouble, and the
file in which these note what ran."""

import os
import pathlib
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
base, trouble, noted = sys.argv[1:]


def runs(times, call):
    """A model that fails is called this often, with the retries that the library has by default."""
    before = pathlib.Path(noted).read_text(encoding="utf-8").count("fails")
    try:
        call()
    except Exception as error:
        assert "the model is broken" in str(error), error
    else:
        raise AssertionError("it did not fail")
    assert pathlib.Path(noted).read_text(encoding="utf-8").count("fails") - before == times


def langchain():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    model = ChatOpenAI(model="repeat", base_url=base, api_key="none")
    assert model.invoke("hello there").content == "hello there"
    assert "".join(chunk.content for chunk in model.stream("one two")) == "one two"
    runs(1, lambda: ChatOpenAI(model="fails", base_url=trouble, api_key="none").invoke("hi"))
    embeddings = OpenAIEmbeddings(model="hashing", base_url=base, api_key="none", check_embedding_ctx_length=False)
    assert [len(vector) for vector in embeddings.embed_documents(["a", "b"])] == [256, 256]


def litellm():
    import litellm

    # No advice among the lines that the test reads.
    litellm.suppress_debug_info = True
    to = {"api_base": base, "api_key": "none"}
    messages = [{"role": "user", "content": "hi you"}]
    whole = litellm.completion(model="openai/repeat", messages=messages, **to)
    assert (whole.choices[0].message.content, whole.usage.completion_tokens) == ("hi you", 2)
    runs(1, lambda: litellm.completion(model="openai/fails", messages=messages, api_base=trouble, api_key="none"))
    chunks = list(litellm.completion(model="openai/repeat", messages=messages, stream=True, **to))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hi you"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(litellm.embedding(model="openai/hashing", input=["a"], **to).data[0]["embedding"]) == 256
    ranking = litellm.rerank(
        model="jina_ai/overlap", query="a b", documents=["a", "b a"], api_base=base + "/rerank", api_key="none"
    )
    assert [result["index"] for result in ranking.results] == [1, 0]


def llama_index():
    from llama_index.llms.openai_like import OpenAILike

    assert OpenAILike(model="repeat", api_base=base, api_key="none", is_chat_model=True).complete("say").text == "say"
    fails = {"model": "fails", "api_base": trouble, "api_key": "none", "is_chat_model": True}
    # Its own retries read no header. Its tries are limited to one.
    runs(3, lambda: OpenAILike(**fails).complete("say"))
    runs(1, lambda: OpenAILike(max_retries=1, **fails).complete("say"))


for part in (langchain, litellm, llama_index):
    part()
    print(part.__name__)
