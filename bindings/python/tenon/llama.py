"""Llama: a model to complete texts, chat, embed and tokenize, with the methods that programs for llama-cpp-python call."""
import ctypes
import time
import uuid
import warnings
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _types as t
from ._engine import Engine, Step
from ._library import check, encoded, lib
from .chat import ChatMixin
from .sampling import Grammar, LogitsProcessorList, Sampler, StoppingCriteriaList

POOLING_MODEL, POOLING_NONE, POOLING_MEAN, POOLING_CLS, POOLING_LAST, POOLING_RANK = (
    t.TN_POOLING_MODEL, t.TN_POOLING_NONE, t.TN_POOLING_MEAN, t.TN_POOLING_CLS, t.TN_POOLING_LAST, t.TN_POOLING_RANK)


# Parameters of llama-cpp-python that mean nothing here: whatever they ask for is always so, or there is nothing to choose.
_WITHOUT_EFFECT = {'verbose', 'flash_attn', 'offload_kqv', 'op_offload', 'logits_all', 'no_perf', 'swa_full', 'f16_kv', 'mul_mat_q',
                   'last_n_tokens_size', 'spm_infill'}
# Others that are not honoured: a warning, unless they have the value that changes nothing.
_NOT_HONOURED = {'use_mlock': False, 'numa': False, 'main_gpu': 0, 'split_mode': 1, 'n_threads_batch': None, 'kv_overrides': None,
                 'chat_handler': None, 'draft_model': None, 'tokenizer': None, 'lora_base': None}


class LlamaState:
    """What a sequence holds: its tokens and its cache. It can be pickled, and loaded by another Llama of the same model."""

    def __init__(self, tokens: List[int], data: bytes) -> None:
        self.tokens, self.data = tokens, data

    @property
    def size(self) -> int:
        return len(self.data)


class Llama(ChatMixin):
    """A model that is open. Close it with close() or `with`; any thread may use it."""

    def __init__(self, model_path: str, *, n_gpu_layers: int = -1, n_ctx: int = 4096, n_batch: Optional[int] = None,
                 n_ubatch: Optional[int] = None, n_threads: Optional[int] = None, n_seqs: int = 1, seed: int = -1, vocab_only: bool = False,
                 use_mmap: bool = True, check_tensors: bool = False, embedding: bool = False, pooling_type: int = POOLING_MODEL,
                 type_k: Optional[str] = None, type_v: Optional[str] = None, lora_path: Optional[str] = None, lora_scale: float = 1.0,
                 lora: Sequence[Tuple[str, float]] = (), devices: Sequence[str] = (), tensor_split: Sequence[float] = (),
                 chat_template: Optional[str] = None, chat_format: Optional[str] = None,
                 progress: Optional[Callable[[int, int], bool]] = None, **session: Any) -> None:
        """Loads a model. Other parameters are fields of tn_session_params by their names (page, repeatable, n_prefixes …).

        n_ctx tokens are shared by n_seqs sequences; that many generations can be under way at a time. `seed` is for completions
        that give none. chat_template is Jinja source instead of the model's own. Parameters of llama-cpp-python that mean nothing
        here (verbose, flash_attn …) are accepted; those that are not honoured (use_mlock …) warn.
        """
        for name in [name for name in session if name in _WITHOUT_EFFECT or name in _NOT_HONOURED]:
            value = session.pop(name)
            if name in _NOT_HONOURED and value is not None and value != _NOT_HONOURED[name]:
                warnings.warn(f'{name} has no effect in Tenon', stacklevel=2)
        self.model_path, self.seed, self.embedding = model_path, seed, embedding
        self._chat_template_text, self._chat_format, self._chat = chat_template, chat_format, None
        for theirs, name in (('rope_freq_base', 'rope_base'), ('rope_freq_scale', 'rope_scale')):
            if theirs in session:
                session[name] = session.pop(theirs)
        options = {**session, 'n_ctx': n_ctx, 'n_batch': n_batch, 'n_ubatch': n_ubatch, 'n_threads': n_threads, 'n_seqs': n_seqs,
                   'n_gpu_layers': n_gpu_layers, 'cache_k': type_k, 'cache_v': type_v}
        adapters = [*([(lora_path, lora_scale)] if lora_path else []), *lora]
        self._engine = Engine(model_path, vocab_only=vocab_only, use_mmap=use_mmap, check_tensors=check_tensors, lora=adapters,
                              devices=devices, tensor_split=tensor_split, progress=progress, embedding=embedding, pooling=pooling_type,
                              session=options)

    def close(self) -> None:
        """Frees model and session. Streams that are under way raise RuntimeError at their next token."""
        self._free_chat()
        self._engine.close()

    def __enter__(self) -> 'Llama':
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, '_engine'):
            self.close()

    # ---- The model ----

    @property
    def metadata(self) -> Dict[str, Any]:
        """What is known of the model: architecture, name, sizes, the chat template."""
        names = ('architecture', 'name', 'n_params', 'bytes', 'n_vocab', 'n_ctx_train', 'n_embd', 'n_layer', 'n_head', 'n_head_kv', 'n_ff',
                 'n_expert', 'is_encoder', 'is_causal', 'is_recurrent', 'n_labels', 'chat_template')
        self._engine.vocabulary()
        values = {name: getattr(self._engine.info, name) for name in names}
        return {name: value.decode('utf-8', 'replace') if isinstance(value, bytes) else value for name, value in values.items()}

    def n_ctx(self) -> int:
        self._engine.usable()
        return int(self._engine.params.n_ctx)

    def n_vocab(self) -> int:
        return int(self._engine.info.n_vocab or lib.tn_tokenizer_size(self._engine.vocabulary()))

    def n_embd(self) -> int:
        return int(self._engine.info.n_embd)

    def token_bos(self) -> int:
        return int(lib.tn_tokenizer_special(self._engine.vocabulary(), t.TN_SPECIAL_BOS))

    def token_eos(self) -> int:
        return int(lib.tn_tokenizer_special(self._engine.vocabulary(), t.TN_SPECIAL_EOS))

    def token_nl(self) -> int:
        return int(lib.tn_tokenizer_special(self._engine.vocabulary(), t.TN_SPECIAL_NEWLINE))

    def memory(self) -> Dict[str, Dict[str, int]]:
        """The bytes that the session has taken, per device."""
        self._engine.usable()
        fit = t.tn_fit()
        check(lib.tn_session_memory(self._engine.session, ctypes.byref(fit)))
        try:
            names = ('weights', 'cache', 'compute', 'scratch', 'adapters', 'staging', 'mapped')
            return {d.name.decode(): {name: getattr(d, name) for name in names} for d in fit.devices[:fit.n_devices]}
        finally:
            lib.tn_fit_free(ctypes.byref(fit))

    # ---- Tokens ----

    def tokenize(self, text: Union[str, bytes], add_bos: bool = True, special: bool = False) -> List[int]:
        """The tokens of a text. With `special` the names of control tokens in the text mean these tokens."""
        return self._engine.tokenize(text, (t.TN_ENCODE_ADD_SPECIAL if add_bos else 0) | (t.TN_ENCODE_PARSE_SPECIAL if special else 0))

    def detokenize(self, tokens: Sequence[int], prev_tokens: Optional[Sequence[int]] = None, special: bool = False) -> bytes:
        """The bytes of tokens. With prev_tokens, which come before them, a space before the first word is kept."""
        flags = (t.TN_DECODE_SPECIAL if special else 0) | (t.TN_DECODE_CONTINUE if prev_tokens else 0)
        return self._engine.detokenize(tokens, flags)

    # ---- Tokens in, logits out ----

    def reset(self) -> None:
        """Forgets what all sequences hold."""
        with self._engine.lock:
            self._engine.usable()
            for sequence in self._engine.sequences:
                self._engine.forget(sequence)

    def eval(self, tokens: Sequence[int]) -> List[float]:
        """The logits of the token that follows `tokens`, which begin a text. What a sequence holds of them is not computed again."""
        sequence = self._engine.acquire(tokens)
        try:
            with self._engine.lock:
                self._engine.evaluate(sequence, list(tokens))
                return self._engine.logits().tolist()
        finally:
            self._engine.release(sequence)

    def sampler(self, **parameters: Any) -> Sampler:
        """A sampler for this vocabulary: see Sampler."""
        if parameters.get('dry_breakers') is not None:
            parameters['pieces'] = self._engine.pieces()
        return Sampler(self.n_vocab(), **parameters)

    def generate(self, tokens: Sequence[int], *, logits_processor: Optional[LogitsProcessorList] = None,
                 stopping_criteria: Optional[StoppingCriteriaList] = None, grammar: Optional[Grammar] = None,
                 **sampling: Any) -> Iterator[int]:
        """Tokens that continue others, until the model ends the text or the context is full."""
        sampler = self._sampler(tokens, grammar, None, sampling)
        for step in self._engine.generate(list(tokens), sampler, limit=0, stops=(), special=False, processors=logits_processor,
                                          criteria=stopping_criteria):
            if step.token is not None:
                yield step.token

    def _sampler(self, prompt: Sequence[int], grammar: Optional[Grammar], trigger: Optional[str], sampling: Mapping[str, Any]) -> Sampler:
        self._engine.usable()
        parameters = dict(sampling)
        if parameters.get('seed') is None:
            parameters['seed'] = self.seed
        sampler = self.sampler(**parameters)
        for token in prompt:
            sampler.accept(token)
        if grammar is not None:
            sampler.set_grammar(grammar, self._engine.pieces(), trigger)
        return sampler

    # ---- State ----

    def save_state(self) -> LlamaState:
        """What the sequence holds that was used last."""
        with self._engine.lock:
            self._engine.usable()
            sequence = max(self._engine.sequences, key=lambda sequence: sequence.used)
            size = ctypes.c_size_t()
            check(lib.tn_session_state_size(self._engine.session, sequence.index, ctypes.byref(size)))
            data = ctypes.create_string_buffer(size.value)
            check(lib.tn_session_state_get(self._engine.session, sequence.index, data, size.value))
            return LlamaState(list(sequence.tokens), data.raw)

    def load_state(self, state: LlamaState) -> None:
        """A sequence holds the state again: a prompt that begins with its tokens continues there."""
        sequence = self._engine.acquire(state.tokens)
        try:
            with self._engine.lock:
                self._engine.forget(sequence)
                check(lib.tn_session_state_set(self._engine.session, sequence.index, state.data, len(state.data)))
                sequence.tokens = list(state.tokens)
        finally:
            self._engine.release(sequence)

    # ---- Embeddings ----

    def embed(self, input: Union[str, Sequence[str]], normalize: bool = False, truncate: bool = True, return_count: bool = False) -> Any:
        """The embedding of a text, or a list of them for a list of texts; without pooling a list of the tokens' embeddings."""
        texts = [input] if isinstance(input, str) else list(input)
        rows, count = [], 0
        for text in texts:
            tokens = self.tokenize(text, special=True)
            room = min(self._engine.params.n_ubatch, self._engine.params.n_batch)
            if truncate:
                tokens = tokens[:room]
            count += len(tokens)
            rows.append(self._embed_tokens(tokens, normalize))
        result = rows[0] if isinstance(input, str) else rows
        return (result, count) if return_count else result

    def _embed_tokens(self, tokens: List[int], normalize: bool) -> Any:
        engine = self._engine
        sequence = engine.acquire([])
        try:
            with engine.lock:
                engine.usable()
                if not self.embedding and not engine.info.is_encoder:
                    raise RuntimeError('the model is open for completions: open it with embedding=True')
                engine.forget(sequence)
                engine._decode(sequence, tokens)
                size = lib.tn_session_embedding_size(engine.session)
                rows = []
                for i in range(len(tokens) if engine.params.pooling == POOLING_NONE else 1):
                    row = lib.tn_session_embedding(engine.session, i)
                    if not row:
                        raise RuntimeError('the decode gave no embedding')
                    if normalize:
                        lib.tn_embedding_normalize(row, size, 2)
                    rows.append(row[:size])
                engine.forget(sequence)
                return rows if engine.params.pooling == POOLING_NONE else rows[0]
        finally:
            engine.release(sequence)

    def create_embedding(self, input: Union[str, Sequence[str]], model: Optional[str] = None) -> Dict[str, Any]:
        """The same in the form of OpenAI's API."""
        texts = [input] if isinstance(input, str) else list(input)
        rows, count = self.embed(texts, return_count=True)
        return {'object': 'list', 'model': model or self.model_path, 'usage': {'prompt_tokens': count, 'total_tokens': count},
                'data': [{'object': 'embedding', 'index': i, 'embedding': row} for i, row in enumerate(rows)]}

    # ---- Completions ----

    def create_completion(self, prompt: Union[str, Sequence[int]], *, max_tokens: Optional[int] = 16, echo: bool = False,
                          stop: Union[None, str, Sequence[str]] = None, stream: bool = False, logprobs: Optional[int] = None,
                          grammar: Optional[Grammar] = None, logits_processor: Optional[LogitsProcessorList] = None,
                          stopping_criteria: Optional[StoppingCriteriaList] = None, model: Optional[str] = None,
                          **sampling: Any) -> Union[Dict[str, Any], Iterator[Dict[str, Any]]]:
        """Continues a text or tokens. Other parameters are those of Sampler: temperature, top_k, top_p, min_p, seed, logit_bias …

        max_tokens of None or 0 and below: until the model ends the text or the context is full. With `stream` an iterator of chunks.
        """
        tokens = self.tokenize(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        stops = [stop] if isinstance(stop, str) else list(stop or [])
        sampler = self._sampler(tokens, grammar, None, sampling)
        steps = self._engine.generate(tokens, sampler, limit=max_tokens or 0, stops=stops, special=False, processors=logits_processor,
                                      criteria=stopping_criteria, n_top=logprobs)
        begin = (prompt if isinstance(prompt, str) else self.detokenize(tokens).decode('utf-8', 'replace')) if echo else ''
        head = {'id': f'cmpl-{uuid.uuid4()}', 'object': 'text_completion', 'created': int(time.time()), 'model': model or self.model_path}
        if stream:
            return self._stream(steps, head, begin)
        text, count, finish, record = begin, 0, None, self._record()
        for step in steps:
            count += step.token is not None
            self._note(record, step, len(text))
            text, finish = text + step.text, step.finish
        return {**head, 'choices': [{'text': text, 'index': 0, 'logprobs': record if logprobs is not None else None, 'finish_reason': finish}],
                'usage': {'prompt_tokens': len(tokens), 'completion_tokens': count, 'total_tokens': len(tokens) + count}}

    __call__ = create_completion

    def _stream(self, steps: Iterator[Step], head: Dict[str, Any], begin: str) -> Iterator[Dict[str, Any]]:
        offset = 0
        for step in steps:
            record = self._record()
            self._note(record, step, offset + len(begin))
            text, begin = begin + step.text, ''
            choice = {'text': text, 'index': 0, 'logprobs': record if step.logprob is not None else None, 'finish_reason': step.finish}
            offset += len(text)
            if text or step.finish or step.logprob is not None:
                yield {**head, 'choices': [choice]}

    @staticmethod
    def _record() -> Dict[str, List[Any]]:
        return {'tokens': [], 'text_offset': [], 'token_logprobs': [], 'top_logprobs': []}

    def _note(self, record: Dict[str, List[Any]], step: Step, offset: int) -> None:
        if step.token is None or step.logprob is None:
            return
        record['tokens'].append(self._piece(step.token))
        record['text_offset'].append(offset)
        record['token_logprobs'].append(step.logprob)
        record['top_logprobs'].append({self._piece(token): logprob for token, logprob in step.top})

    def _piece(self, token: int) -> str:
        return self.detokenize([token], prev_tokens=[0], special=True).decode('utf-8', 'replace')
