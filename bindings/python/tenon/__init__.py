"""Tenon from Python: language models from GGUF files. docs/python.md has examples.

    from tenon import Llama
    with Llama("model.gguf") as llama:
        print(llama.create_completion("Once upon a time", max_tokens=32)["choices"][0]["text"])
"""
from ._library import TenonError, lib, set_log
from .llama import (POOLING_CLS, POOLING_LAST, POOLING_MEAN, POOLING_MODEL, POOLING_NONE, POOLING_RANK, Llama, LlamaState)
from .sampling import Grammar, LlamaGrammar, LogitsProcessorList, Sampler, StoppingCriteriaList

__version__ = lib.tn_version().decode()
__all__ = ['Grammar', 'Llama', 'LlamaGrammar', 'LlamaState', 'LogitsProcessorList', 'POOLING_CLS', 'POOLING_LAST', 'POOLING_MEAN',
           'POOLING_MODEL', 'POOLING_NONE', 'POOLING_RANK', 'Sampler', 'StoppingCriteriaList', 'TenonError', 'set_log']
