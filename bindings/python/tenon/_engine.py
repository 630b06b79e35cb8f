"""A model with one session: tokens, sequences, steps of generation. Llama (llama.py) makes texts and chats of it."""
import ctypes
import threading
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _types as t
from ._library import TenonError, check, encoded, error_of, lib
from .sampling import LogitsProcessorList, Pieces, Sampler, StoppingCriteriaList

_POINTERS = {'threads', 'sched', 'overrides', 'n_overrides', 'budgets', 'n_budgets', 'adapters', 'controls', 'n_adapters', 'n_controls',
             'pack', 'progress', 'abort', 'user', 'eval', 'eval_user', 'devices', 'split', 'embeddings', 'pooling'}


class Sequence_:
    """One sequence of the session: the tokens whose cells it holds, and whether a generation uses it."""

    def __init__(self, index: int) -> None:
        self.index, self.tokens, self.busy, self.owner, self.used = index, [], False, 0, 0  # type: int, List[int], bool, int, int


class Step:
    """What one step of a generation gives."""
    __slots__ = ('token', 'text', 'finish', 'logprob', 'top')

    def __init__(self) -> None:
        self.token: Optional[int] = None
        self.text, self.finish = '', None  # type: str, Optional[str]
        self.logprob: Optional[float] = None
        self.top: List[Tuple[int, float]] = []


class Engine:
    """Owns model, adapters and session. Every call that uses the session holds `lock`: streams of several threads alternate by token."""

    def __init__(self, model_path: str, *, vocab_only: bool, use_mmap: bool, check_tensors: bool, lora: Sequence[Tuple[str, float]],
                 devices: Sequence[str], tensor_split: Sequence[float], progress: Optional[Callable[[int, int], bool]],
                 embedding: bool, pooling: int, session: Mapping[str, Any]) -> None:
        self.lock = threading.Lock()
        self.free = threading.Condition()
        self.model: Any = ctypes.POINTER(t.tn_model)()
        self.session: Any = ctypes.POINTER(t.tn_session)()
        self._adapters: List[Any] = []
        self._pieces: Optional[Pieces] = None
        self._clock = 0
        self.sequences: List[Sequence_] = []
        model_params = t.tn_model_params(no_mmap=not use_mmap, vocab_only=vocab_only, check_weights=check_tensors)
        check(lib.tn_model_open(encoded(model_path), ctypes.byref(model_params), ctypes.byref(self.model)))
        self.info = lib.tn_model_get_info(self.model)
        self.tokenizer = lib.tn_model_tokenizer(self.model)
        if not vocab_only:
            try:
                self._open_session(lora, devices, tensor_split, progress, embedding, pooling, session)
            except BaseException:
                self.close()
                raise

    def _open_session(self, lora: Any, devices: Any, tensor_split: Any, progress: Any, embedding: bool, pooling: int, session: Any) -> None:
        params = lib.tn_session_params_default()
        fields = {field[0] for field in t.tn_session_params._fields_} - _POINTERS
        for name, value in session.items():
            if name not in fields:
                raise TypeError(f'Llama has no parameter {name}')
            if value is None:
                continue
            if name.startswith('cache_') and isinstance(value, str) and name not in ('cache_disk',):
                kind = ctypes.c_int()
                check(lib.tn_cache_type_parse(encoded(value), ctypes.byref(kind)))
                value = kind.value
            setattr(params, name, encoded(value) if isinstance(value, str) else value)
        for i, device in enumerate(devices):
            params.devices[i] = encoded(device)
        for i, share in enumerate(tensor_split):
            params.split[i] = share
        params.embeddings, params.pooling = embedding, pooling
        uses = (t.tn_adapter_use * max(1, len(lora)))()
        for i, (path, scale) in enumerate(lora):
            adapter = ctypes.POINTER(t.tn_adapter)()
            check(lib.tn_adapter_open(self.model, encoded(path), ctypes.byref(adapter)))
            self._adapters.append(adapter)
            uses[i] = t.tn_adapter_use(adapter, scale)
        params.adapters, params.n_adapters = uses, len(lora)
        kind_of: Dict[str, Any] = {field[0]: field[1] for field in t.tn_session_params._fields_}
        callback_type = kind_of['progress']
        callback = callback_type(lambda _, done, total: bool(progress(done, total) is not False)) if progress else callback_type()
        params.progress = callback
        check(lib.tn_session_open(self.model, ctypes.byref(params), ctypes.byref(self.session)))
        self.params = lib.tn_session_get_params(self.session)
        self.sequences = [Sequence_(i) for i in range(self.params.n_seqs)]

    def close(self) -> None:
        with self.lock:
            self._pieces = None
            if self.session:
                lib.tn_session_free(self.session)
            for adapter in self._adapters:
                lib.tn_adapter_close(adapter)
            if self.model:
                lib.tn_model_close(self.model)
            self.session, self.model, self._adapters, self.tokenizer = None, None, [], None

    def usable(self) -> None:
        if not self.session:
            raise RuntimeError('the model is closed, or was opened with vocab_only')

    def vocabulary(self) -> Any:
        if not self.tokenizer:
            raise RuntimeError('the model is closed' if not self.model else 'the model has no tokenizer')
        return self.tokenizer

    def pieces(self) -> Pieces:
        if self._pieces is None:
            self._pieces = Pieces(self.vocabulary())
        return self._pieces

    # ---- Tokens ----

    def tokenize(self, text: Union[str, bytes], flags: int) -> List[int]:
        raw = text if isinstance(text, bytes) else encoded(text)
        tokens = t.tn_tokens()
        check(lib.tn_tokenizer_encode(self.vocabulary(), raw, len(raw or b''), flags, ctypes.byref(tokens)))
        try:
            return list(tokens.ids[:tokens.count]) if tokens.count else []
        finally:
            lib.tn_tokens_free(ctypes.byref(tokens))

    def detokenize(self, tokens: Sequence[int], flags: int) -> bytes:
        text = t.tn_text()
        array = (ctypes.c_int32 * max(1, len(tokens)))(*tokens)
        check(lib.tn_tokenizer_decode(self.vocabulary(), array, len(tokens), flags, ctypes.byref(text)))
        try:
            return ctypes.string_at(text.bytes, text.length) if text.length else b''
        finally:
            lib.tn_text_free(ctypes.byref(text))

    # ---- Sequences ----

    def acquire(self, tokens: Sequence[int]) -> Sequence_:
        """The free sequence that begins most like the tokens. Waits for one that another thread uses."""
        me = threading.get_ident()
        with self.free:
            while True:
                self.usable()
                free = [sequence for sequence in self.sequences if not sequence.busy]
                if free:
                    break
                if all(sequence.owner == me for sequence in self.sequences):
                    raise RuntimeError(f'all {len(self.sequences)} sequences have streams that this thread has begun and not ended: close '
                                       'one, or open the model with a larger n_seqs')
                self.free.wait(0.5)
            best = max(free, key=lambda sequence: (common(sequence.tokens, tokens), -sequence.used))
            self._clock += 1
            best.busy, best.owner, best.used = True, me, self._clock
            return best

    def release(self, sequence: Sequence_) -> None:
        with self.free:
            sequence.busy = False
            self.free.notify()

    def forget(self, sequence: Sequence_) -> None:
        check(lib.tn_session_seq_remove(self.session, sequence.index, 0, -1))
        sequence.tokens = []

    def _decode(self, sequence: Sequence_, tokens: Sequence[int]) -> None:
        """Decodes tokens after those that the sequence holds; idle sequences make room where there is none. With the lock held."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        batch = t.tn_batch(n_tokens=len(tokens), tokens=array)
        if sequence.index:
            batch.seqs = (ctypes.c_int32 * len(tokens))(*[sequence.index] * len(tokens))
        status = lib.tn_session_decode(self.session, ctypes.byref(batch))
        if status == t.TN_E_FULL:
            with self.free:
                for other in self.sequences:
                    if not other.busy and other is not sequence and other.tokens:
                        self.forget(other)
            status = lib.tn_session_decode(self.session, ctypes.byref(batch))
        check(status)
        sequence.tokens.extend(tokens)

    def evaluate(self, sequence: Sequence_, tokens: Sequence[int]) -> None:
        """The sequence holds just these tokens afterwards, and the logits of the last one are there. With the lock held."""
        if not tokens:
            raise ValueError('there are no tokens to evaluate')
        if len(tokens) > self.params.n_ctx:
            raise TenonError(t.TN_E_FULL, 'TN_E_FULL', f'the text has {len(tokens)} tokens, the context only {self.params.n_ctx}: '
                             'open the model with a larger n_ctx')
        keep = min(common(sequence.tokens, tokens), len(tokens) - 1)
        if keep < len(sequence.tokens):
            status = lib.tn_session_seq_remove(self.session, sequence.index, keep, -1) if keep else t.TN_E_UNSUPPORTED
            if status == t.TN_OK:
                del sequence.tokens[keep:]
            else:  # recurrent state goes as a whole
                self.forget(sequence)
                keep = 0
        step = self.params.n_batch
        for begin in range(keep, len(tokens), step):
            self._decode(sequence, tokens[begin:begin + step])

    def logits(self) -> memoryview:
        """The logits of the last token of the last decode, writable. With the lock held."""
        row = lib.tn_session_logits(self.session, -1)
        if not row:
            raise RuntimeError('the last decode has no logits')
        size = self.info.n_vocab
        return memoryview(ctypes.cast(row, ctypes.POINTER(ctypes.c_float * size)).contents).cast('B').cast('f')

    # ---- Generation ----

    def generate(self, prompt: List[int], sampler: Sampler, *, limit: int, stops: Sequence[str], special: bool, ignore_eos: bool = False,
                 processors: Optional[LogitsProcessorList] = None, criteria: Optional[StoppingCriteriaList] = None,
                 n_top: Optional[int] = None) -> Iterator[Step]:
        """One step per token, the last with its reason to finish. The sequence is given back when the iterator ends or is closed."""
        texts = [encoded(stop) for stop in stops if stop]
        params = t.tn_generator_params(sampler=sampler._handle, decode_flags=t.TN_DECODE_SPECIAL if special else 0, ignore_end=ignore_eos,
                                       stops=(ctypes.c_char_p * max(1, len(texts)))(*texts), n_stops=len(texts))
        generator = ctypes.POINTER(t.tn_generator)()
        sequence = self.acquire(prompt)
        try:
            check(lib.tn_generator_new(self.vocabulary(), ctypes.byref(params), ctypes.byref(generator)))
            tokens, done = list(prompt), False
            while not done:
                with self.lock:
                    self.usable()
                    step = self._step(generator, sequence, tokens, processors, criteria, n_top)
                    if step.finish is None and lib.tn_generator_count(generator) >= limit > 0:
                        step.text, step.finish = step.text + read(lib.tn_generator_finish, generator), 'length'
                done = step.finish is not None
                if step.token is not None:
                    tokens.append(step.token)
                yield step
        finally:
            lib.tn_generator_free(generator)
            self.release(sequence)

    def _step(self, generator: Any, sequence: Sequence_, tokens: List[int], processors: Any, criteria: Any, n_top: Optional[int]) -> Step:
        step = Step()
        try:
            self.evaluate(sequence, tokens)
        except Exception as error:
            if getattr(error, 'status', None) == t.TN_E_FULL and lib.tn_generator_count(generator) > 0:
                step.text, step.finish = read(lib.tn_generator_finish, generator), 'length'  # the context is full
                return step
            raise
        row = self.logits()
        if processors or criteria:
            if processors:
                processors(tokens, row)
            if criteria and criteria(tokens, row):
                step.text, step.finish = read(lib.tn_generator_finish, generator), 'stop'
                return step
        data = (ctypes.c_float * len(row)).from_buffer(row)
        status = lib.tn_generator_sample_logits(generator, data, len(row))
        if status not in (t.TN_OK, t.TN_END):
            raise error_of(status)
        step.text = read(lib.tn_generator_text, generator)
        if status == t.TN_END:
            step.finish = 'stop'
            return step
        step.token = lib.tn_generator_token(generator)
        if n_top is not None:
            top, chosen = (t.tn_token_prob * max(1, n_top))(), ctypes.c_float()
            check(lib.tn_top_logprobs(data, len(row), top, n_top, step.token, ctypes.byref(chosen)))
            step.logprob = chosen.value
            step.top = [(item.token, item.logprob) for item in top[:n_top] if item.token != t.TN_TOKEN_NONE]
        return step


def read(function: Any, generator: Any) -> str:
    length = ctypes.c_size_t()
    pointer = function(generator, ctypes.byref(length))
    return ctypes.string_at(pointer, length.value).decode('utf-8', 'replace') if pointer else ''


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two lists have in common from the first on."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
