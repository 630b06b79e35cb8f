"""Chat: messages to a prompt by the model's template, and the text of the model back to a message."""
import ctypes
import json
import time
import uuid
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _types as t
from ._engine import Step
from ._library import check, encoded, lib, taken
from .sampling import Grammar, LogitsProcessorList

Message = Mapping[str, Any]


class Prompt:
    """The rendered messages, and what is known about the answer."""

    def __init__(self, template: Any, params: Any) -> None:
        self.handle: Any = ctypes.POINTER(t.tn_chat_prompt)()
        check(lib.tn_chat_prompt_new(template, ctypes.byref(params), ctypes.byref(self.handle)))
        length = ctypes.c_size_t()
        self.text = ctypes.string_at(lib.tn_chat_prompt_text(self.handle, ctypes.byref(length)), length.value)
        self.has_bos = bool(lib.tn_chat_prompt_has_bos(self.handle))
        self.grammar, self.trigger = lib.tn_chat_prompt_grammar(self.handle), lib.tn_chat_prompt_trigger(self.handle)

    def __del__(self) -> None:
        if getattr(self, 'handle', None):
            lib.tn_chat_prompt_free(self.handle)
            self.handle = None


class Parser:
    """Turns the text of an answer into deltas while it arrives, and into a message at the end."""

    def __init__(self, prompt: Prompt) -> None:
        self.handle: Any = ctypes.POINTER(t.tn_chat_parser)()
        self.deltas: List[Dict[str, Any]] = []
        self._event = t.tn_chat_event_fn(self._on_event)
        check(lib.tn_chat_parser_new(prompt.handle, ctypes.byref(self.handle)))

    def _on_event(self, _: Any, event: Any) -> int:
        kind, e = event.contents.kind, event.contents
        text = ctypes.string_at(e.text, e.length).decode('utf-8', 'replace')
        if kind == t.TN_CHAT_CONTENT:
            self.deltas.append({'content': text})
        elif kind == t.TN_CHAT_REASONING:
            self.deltas.append({'reasoning_content': text})
        elif kind == t.TN_CHAT_CALL:
            call = {'index': e.call, 'id': e.id.decode(), 'type': 'function', 'function': {'name': text, 'arguments': ''}}
            self.deltas.append({'tool_calls': [call]})
        elif kind == t.TN_CHAT_ARGUMENTS:
            self.deltas.append({'tool_calls': [{'index': e.call, 'function': {'arguments': text}}]})
        return t.TN_OK

    def feed(self, text: str, last: bool = False) -> List[Dict[str, Any]]:
        raw = encoded(text) or b''
        self.deltas = []
        check(lib.tn_chat_parser_feed(self.handle, raw, len(raw), self._event, None))
        if last:
            check(lib.tn_chat_parser_finish(self.handle, self._event, None))
        return self.deltas

    def calls(self) -> int:
        return int(lib.tn_chat_parser_calls(self.handle))

    def message(self) -> Dict[str, Any]:
        out = ctypes.POINTER(ctypes.c_char)()
        check(lib.tn_chat_parser_message(self.handle, ctypes.byref(out)))
        result: Dict[str, Any] = json.loads(taken(out))
        return result

    def __del__(self) -> None:
        if getattr(self, 'handle', None):
            lib.tn_chat_parser_free(self.handle)
            self.handle = None


def response_grammar(form: Optional[Mapping[str, Any]]) -> Optional[Grammar]:
    """The grammar of OpenAI's response_format."""
    kind = (form or {}).get('type', 'text')
    schema = (form or {}).get('schema') or ((form or {}).get('json_schema') or {}).get('schema')
    if kind == 'text':
        return None
    if kind == 'json_schema' and schema is None:
        raise ValueError('response_format json_schema needs a schema')
    if kind in ('json_object', 'json_schema'):
        return Grammar.json() if schema is None else Grammar.from_json_schema(schema)
    raise ValueError(f'response_format {kind}: expected text, json_object or json_schema')


class ChatMixin:
    """The chat methods of Llama."""
    _chat: Any
    _chat_template_text: Optional[str]
    _chat_format: Optional[str]
    _engine: Any
    model_path: str

    def _template(self) -> Any:
        if not self._chat:
            text = encoded(self._chat_template_text) or self._engine.info.chat_template
            self._engine.vocabulary()
            chat = ctypes.POINTER(t.tn_chat_template)()
            check(lib.tn_chat_template_new(text, ctypes.byref(chat)))
            self._chat = chat
        return self._chat

    def _free_chat(self) -> None:
        if getattr(self, '_chat', None):
            lib.tn_chat_template_free(self._chat)
            self._chat = None

    def _token_text(self, role: int) -> Optional[bytes]:
        token = lib.tn_tokenizer_special(self._engine.vocabulary(), role)
        length = ctypes.c_size_t()
        pointer = lib.tn_token_text(self._engine.vocabulary(), token, ctypes.byref(length))
        return ctypes.string_at(pointer, length.value) if pointer else None

    def _prompt(self, messages: Sequence[Message], tools: Optional[Sequence[Mapping[str, Any]]], tool_choice: Any, variables: Any) -> Prompt:
        params = lib.tn_chat_params_default()
        params.messages = json.dumps(list(messages)).encode()
        if tools:
            params.tools = json.dumps(list(tools)).encode()
        if variables:
            params.variables = json.dumps(dict(variables)).encode()
        params.bos_token, params.eos_token = self._token_text(t.TN_SPECIAL_BOS), self._token_text(t.TN_SPECIAL_EOS)
        params.format = encoded(self._chat_format)
        if isinstance(tool_choice, Mapping):
            params.tool_choice, params.tool_name = t.TN_TOOLS_REQUIRED, encoded(tool_choice['function']['name'])
        elif tool_choice is not None:
            choices = {'auto': t.TN_TOOLS_AUTO, 'none': t.TN_TOOLS_NONE, 'required': t.TN_TOOLS_REQUIRED}
            if tool_choice not in choices:
                raise ValueError(f'tool_choice {tool_choice}: expected auto, none, required or a function')
            params.tool_choice = choices[tool_choice]
        return Prompt(self._template(), params)

    def apply_chat_template(self, messages: Sequence[Message], *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
                            chat_template_kwargs: Optional[Mapping[str, Any]] = None) -> str:
        """The prompt that the messages make."""
        return self._prompt(messages, tools, None, chat_template_kwargs).text.decode('utf-8', 'replace')

    def create_chat_completion(self, messages: Sequence[Message], *, tools: Optional[Sequence[Mapping[str, Any]]] = None,
                               tool_choice: Union[None, str, Mapping[str, Any]] = None, max_tokens: Optional[int] = None,
                               stop: Union[None, str, Sequence[str]] = None, stream: bool = False, logprobs: bool = False,
                               top_logprobs: int = 0, response_format: Optional[Mapping[str, Any]] = None,
                               grammar: Optional[Grammar] = None, logits_processor: Optional[LogitsProcessorList] = None,
                               chat_template_kwargs: Optional[Mapping[str, Any]] = None, model: Optional[str] = None,
                               **sampling: Any) -> Union[Dict[str, Any], Iterator[Dict[str, Any]]]:
        """The model's answer to messages, in the form of OpenAI's API. With `stream` an iterator of chunks."""
        prompt = self._prompt(messages, tools, tool_choice, chat_template_kwargs)
        flags = t.TN_ENCODE_PARSE_SPECIAL | (0 if prompt.has_bos else t.TN_ENCODE_ADD_SPECIAL)
        tokens = self._engine.tokenize(prompt.text, flags)
        grammar, trigger = grammar or response_grammar(response_format), None
        if grammar is None and prompt.grammar:
            grammar = Grammar(prompt.grammar.decode())
            trigger = prompt.trigger.decode() if prompt.trigger else None
        sampler = self._sampler(tokens, grammar, trigger, sampling)  # type: ignore[attr-defined]
        stops = [stop] if isinstance(stop, str) else list(stop or [])
        steps = self._engine.generate(tokens, sampler, limit=max_tokens or 0, stops=[*stops, *self._turn_end()], special=True,
                                      processors=logits_processor, n_top=top_logprobs if logprobs else None)
        head = {'id': f'chatcmpl-{uuid.uuid4()}', 'created': int(time.time()), 'model': model or self.model_path}
        if stream:
            return self._stream_chat(steps, Parser(prompt), head)
        parser, count, finish, content = Parser(prompt), 0, None, []  # type: Parser, int, Optional[str], List[Any]
        for step in steps:
            count += step.token is not None
            content += self._chat_logprobs(step)
            finish = step.finish
            parser.feed(step.text, finish is not None)
        choice = {'index': 0, 'message': parser.message(), 'finish_reason': 'tool_calls' if parser.calls() and finish == 'stop' else finish,
                  'logprobs': {'content': content} if logprobs else None}
        return {**head, 'object': 'chat.completion', 'choices': [choice],
                'usage': {'prompt_tokens': len(tokens), 'completion_tokens': count, 'total_tokens': len(tokens) + count}}

    def _turn_end(self) -> List[str]:
        """The text that ends a turn, where no token that ends a generation is written so."""
        end = lib.tn_chat_template_turn_end(self._template())
        token = lib.tn_tokenizer_find(self._engine.vocabulary(), end, len(end))
        known = token >= 0 and lib.tn_token_is_end(self._engine.vocabulary(), token)
        return [] if known or not end.strip() else [end.decode('utf-8', 'replace')]

    def _stream_chat(self, steps: Iterator[Step], parser: Parser, head: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
        head = {**head, 'object': 'chat.completion.chunk'}

        def chunk(delta: Dict[str, Any], finish: Optional[str] = None, content: Optional[List[Any]] = None) -> Dict[str, Any]:
            return {**head, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish,
                                         'logprobs': {'content': content} if content else None}]}
        yield chunk({'role': 'assistant', 'content': ''})
        for step in steps:
            content = self._chat_logprobs(step)
            for delta in parser.feed(step.text, step.finish is not None) or ([{}] if content else []):
                yield chunk(delta, None, content)
                content = []
            if step.finish:
                yield chunk({}, 'tool_calls' if parser.calls() and step.finish == 'stop' else step.finish)

    def _chat_logprobs(self, step: Step) -> List[Dict[str, Any]]:
        if step.token is None or step.logprob is None:
            return []

        def entry(token: int, logprob: float) -> Dict[str, Any]:
            raw = self._engine.detokenize([token], t.TN_DECODE_SPECIAL | t.TN_DECODE_CONTINUE)
            return {'token': raw.decode('utf-8', 'replace'), 'logprob': logprob, 'bytes': list(raw)}
        top: List[Tuple[int, float]] = step.top
        return [{**entry(step.token, step.logprob), 'top_logprobs': [entry(*pair) for pair in top]}]
