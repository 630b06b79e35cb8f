"""Samplers and grammars: what chooses the next token from a row of logits."""
import ctypes
import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from . import _types as t
from ._library import check, encoded, lib, taken

# input_ids and a writable view of the logits ('f'); changes the view, or returns as many numbers.
LogitsProcessor = Callable[[List[int], memoryview], Optional[Sequence[float]]]
StoppingCriterion = Callable[[List[int], memoryview], bool]


class LogitsProcessorList(List[LogitsProcessor]):
    """Processors in the order in which they are applied."""

    def __call__(self, input_ids: List[int], scores: memoryview) -> memoryview:
        for processor in self:
            result = processor(input_ids, scores)
            if result is not None and result is not scores:
                if len(result) != len(scores):
                    raise ValueError(f'a logits processor returned {len(result)} numbers for {len(scores)} logits')
                for i, value in enumerate(result):
                    scores[i] = value  # type: ignore[call-overload]  # its items are floats
        return scores


class StoppingCriteriaList(List[StoppingCriterion]):
    """Generation ends where one of them returns true."""

    def __call__(self, input_ids: List[int], scores: memoryview) -> bool:
        return any(criterion(input_ids, scores) for criterion in self)


class Grammar:
    """A compiled grammar (GBNF). It may be used by any number of completions and threads."""

    def __init__(self, gbnf: str, root: Optional[str] = None) -> None:
        self._handle: Any = ctypes.POINTER(t.tn_grammar)()
        self.text = gbnf
        check(lib.tn_grammar_new(encoded(gbnf), encoded(root), ctypes.byref(self._handle)))

    @classmethod
    def from_string(cls, gbnf: str, verbose: bool = True) -> 'Grammar':
        return cls(gbnf)

    @classmethod
    def from_file(cls, path: str, verbose: bool = True) -> 'Grammar':
        with open(path, encoding='utf-8') as file:
            return cls(file.read())

    @classmethod
    def from_json_schema(cls, schema: Union[str, Mapping[str, Any]], verbose: bool = True) -> 'Grammar':
        text = schema if isinstance(schema, str) else json.dumps(schema)
        gbnf = ctypes.POINTER(ctypes.c_char)()
        check(lib.tn_schema_to_grammar(encoded(text), ctypes.byref(gbnf)))
        return cls(taken(gbnf))

    @classmethod
    def json(cls) -> 'Grammar':
        """Any JSON object."""
        return cls(lib.tn_grammar_json().decode())

    def matches(self, text: str) -> bool:
        """Whether the whole text follows the grammar."""
        params = t.tn_grammar_state_params(grammar=self._handle)
        state = ctypes.POINTER(t.tn_grammar_state)()
        check(lib.tn_grammar_state_new(ctypes.byref(params), ctypes.byref(state)))
        try:
            raw = text.encode('utf-8', 'surrogateescape')
            status = lib.tn_grammar_accept_bytes(state, raw, len(raw))
            if status == t.TN_E_INVALID:
                return False
            check(status)
            return bool(lib.tn_grammar_is_accepting(state))
        finally:
            lib.tn_grammar_state_free(state)

    def __del__(self) -> None:
        if getattr(self, '_handle', None):
            lib.tn_grammar_free(self._handle)
            self._handle = None


class Pieces:
    """The texts of a vocabulary, which grammars and DRY's breakers need."""

    def __init__(self, tokenizer: Any) -> None:
        self.handle: Any = ctypes.POINTER(t.tn_pieces)()
        check(lib.tn_pieces_from_tokenizer(tokenizer, ctypes.byref(self.handle)))

    def __del__(self) -> None:
        if getattr(self, 'handle', None):
            lib.tn_pieces_free(self.handle)
            self.handle = None


# Names of llama-cpp-python's parameters, where they differ from the fields of tn_sampler_params.
_RENAMED = {'mirostat_mode': 'mirostat', 'repeat_last_n': 'penalty_window', 'penalty_last_n': 'penalty_window',
            'dynatemp_range': 'dynamic_range', 'dynatemp_exponent': 'dynamic_exponent', 'dry_penalty_last_n': 'dry_window'}
_FIELDS = {field[0] for field in t.tn_sampler_params._fields_}


class Sampler:
    """Draws tokens from rows of logits. Parameters are the fields of tn_sampler_params; those not given have Tenon's defaults.

    `samplers` names the chain in its order: ["top_k", "temperature"]. One thread at a time may use a sampler.
    """

    def __init__(self, n_vocab: int, *, samplers: Optional[Sequence[str]] = None, logit_bias: Optional[Mapping[int, float]] = None,
                 dry_breakers: Optional[Sequence[str]] = None, pieces: Optional[Pieces] = None, **parameters: Any) -> None:
        self.n_vocab = n_vocab
        self._handle: Any = ctypes.POINTER(t.tn_sampler)()
        params = lib.tn_sampler_params_default()
        if samplers is not None:
            if len(samplers) > len(params.chain):
                raise ValueError(f'a chain has at most {len(params.chain)} samplers')
            params.n_chain = len(samplers)
            for i, name in enumerate(samplers):
                kind = ctypes.c_int()
                check(lib.tn_sampler_kind_from_name(encoded(name), ctypes.byref(kind)))
                params.chain[i] = kind.value
        for name, value in parameters.items():
            field = _RENAMED.get(name, name)
            if field not in _FIELDS or field in ('chain', 'n_chain', 'logit_bias', 'n_logit_bias', 'pieces'):
                raise TypeError(f'a sampler has no parameter {name}')
            if value is not None:
                setattr(params, field, 0 if field == 'top_k' and value < 0 else value)
        if parameters.get('seed') is not None and parameters['seed'] < 0:
            params.seed = 2**64 - 1  # a seed from the system
        if logit_bias:
            array = (t.tn_logit_bias * len(logit_bias))(*[t.tn_logit_bias(int(k), v) for k, v in logit_bias.items()])
            params.logit_bias, params.n_logit_bias = array, len(logit_bias)
        if dry_breakers is not None:
            params.dry_breakers = (ctypes.c_char_p * max(1, len(dry_breakers)))(*[encoded(text) for text in dry_breakers])
            params.n_dry_breakers = len(dry_breakers)
        if pieces is not None:
            params.pieces = pieces.handle
        check(lib.tn_sampler_new(ctypes.byref(params), n_vocab, ctypes.byref(self._handle)))

    def set_grammar(self, grammar: Optional[Grammar], pieces: Optional[Pieces] = None, trigger: Optional[str] = None) -> None:
        """Tokens follow the grammar from now on; with a trigger, from where that text appears, which is part of the grammar."""
        if grammar is None:
            check(lib.tn_sampler_set_grammar(self._handle, None))
            return
        params = t.tn_grammar_state_params(grammar=grammar._handle, pieces=pieces.handle if pieces else None)
        if trigger:
            params.triggers = ctypes.pointer(t.tn_grammar_trigger(encoded(trigger), t.TN_TOKEN_NONE, True))
            params.n_triggers = 1
        state = ctypes.POINTER(t.tn_grammar_state)()
        check(lib.tn_grammar_state_new(ctypes.byref(params), ctypes.byref(state)))
        try:
            check(lib.tn_sampler_set_grammar(self._handle, state))
        except Exception:
            lib.tn_grammar_state_free(state)
            raise

    def sample(self, logits: Union[Sequence[float], memoryview]) -> int:
        """Draws a token. It is not accepted: see accept."""
        row = (ctypes.c_float * len(logits))(*logits)
        token = ctypes.c_int32()
        check(lib.tn_sampler_sample(self._handle, row, len(row), ctypes.byref(token)))
        return token.value

    def accept(self, token: int) -> None:
        """The next token of the text: penalties and the grammar go on from there."""
        check(lib.tn_sampler_accept(self._handle, token))

    def candidates(self, n: int = 40) -> Dict[int, float]:
        """The tokens that the last draw chose from, the most probable first, with the logarithms of their probabilities."""
        array, count = (t.tn_token_prob * n)(), ctypes.c_size_t()
        check(lib.tn_sampler_candidates(self._handle, array, n, ctypes.byref(count)))
        return {item.token: item.logprob for item in array[:count.value]}

    def reset(self) -> None:
        lib.tn_sampler_reset(self._handle)

    @property
    def seed(self) -> int:
        return int(lib.tn_sampler_seed(self._handle))

    @property
    def is_greedy(self) -> bool:
        return bool(lib.tn_sampler_is_greedy(self._handle))

    def __del__(self) -> None:
        if getattr(self, '_handle', None):
            lib.tn_sampler_free(self._handle)
            self._handle = None


LlamaGrammar = Grammar  # the name that programs for llama-cpp-python use
