#!/usr/bin/env python3
"""requests.py URL SET EXPECTED [--record] [--bytes]: sends the requests of a set one after the other, each on a connection of its own, and
compares the whole answers with the recorded ones. Times, ids and figures of this machine may differ; texts and counts may not. With --bytes
every byte is sent on its own, which must give the same answers: the server's HTTP against a reader of single bytes."""
import json
import re
import socket
import ssl
import sys
import urllib.parse

STORY = {'prompt': 'Once upon a time', 'temperature': 0, 'n_predict': 4}
TEXT = {'prompt': 'Once upon a time', 'temperature': 0, 'max_tokens': 4}
HI = [{'role': 'user', 'content': 'Hi'}]
CHAT = {'messages': HI, 'temperature': 0, 'max_tokens': 4}
MESSAGE = {'messages': HI, 'temperature': 0, 'max_tokens': 4}
TOOL = {'type': 'function', 'function': {'name': 'f', 'description': 'does', 'parameters': {'type': 'object', 'properties': {'a': {'type': 'boolean'}},
                                                                                            'required': ['a'], 'additionalProperties': False}}}
BEGUN = HI + [{'role': 'assistant', 'content': 'Well'}]
SAMPLING = {'temperature': 0.5, 'top_k': 1, 'top_p': 0.9, 'min_p': 0.02, 'typical_p': 0.8, 'top_n_sigma': 2, 'xtc_probability': 0.1, 'xtc_threshold': 0.2,
            'dynatemp_range': 0.3, 'dynatemp_exponent': 1.5, 'repeat_penalty': 1.1, 'repeat_last_n': 33, 'presence_penalty': 0.4,
            'frequency_penalty': 0.25, 'dry_multiplier': 0.7, 'dry_base': 1.6, 'dry_allowed_length': 3, 'dry_penalty_last_n': 44, 'mirostat_tau': 4,
            'mirostat_eta': 0.3, 'seed': 7, 'min_keep': 2}


def get(path, **headers):
    return ('GET', path, None, headers)


def post(path, body, **headers):
    return ('POST', path, body, headers)


def with_(base, **more):
    return {**base, **more}


COMPLETIONS = [
    post('/v1/completions', TEXT),
    post('/v1/completions', TEXT),  # its prefix is cached now
    post('/v1/completions', with_(TEXT, cache_prompt=False)),
    post('/v1/completions', with_(TEXT, echo=True)),
    post('/v1/completions', with_(TEXT, logprobs=2, max_tokens=3)),
    post('/v1/completions', with_(TEXT, logprobs=True)),
    post('/v1/completions', with_(TEXT, logprobs=0, echo=True, max_tokens=1)),
    post('/v1/completions', with_(TEXT, stream=True)),
    post('/v1/completions', with_(TEXT, stream=True, echo=True, logprobs=1, stream_options={'include_usage': True})),
    post('/v1/completions', with_(TEXT, stream=True, return_progress=True, timings_per_token=True)),
    post('/v1/completions', {'prompt': 'The cat', 'temperature': 0}),  # 16 tokens by default
    post('/v1/completions', with_(TEXT, prompt=['Once', 'The cat', 'A dog'], n=2)),
    post('/v1/completions', with_(TEXT, prompt=[398, 397])),
    post('/v1/completions', with_(TEXT, prompt=[[398, 397], [398]])),
    post('/v1/completions', with_(TEXT, prompt=['Once', 397])),
    post('/v1/completions', with_(TEXT, stop='was', max_tokens=20)),
    post('/v1/completions', with_(TEXT, stop=['zebra', '', ' little'], max_tokens=20)),
    post('/v1/completions', with_(TEXT, stop_sequences=['girl'], max_tokens=20)),
    post('/v1/completions', with_(TEXT, suffix='the end')),
    post('/v1/completions', with_(TEXT, suffix='the end', prompt=[1])),
    post('/v1/completions', with_(TEXT, verbose=True)),
    post('/v1/completions', with_(TEXT, max_tokens=0)),
    post('/v1/completions', with_(TEXT, grammar='root ::= " no" | " yes"')),
    post('/v1/completions', with_(TEXT, grammar='root ::= (')),
    post('/v1/completions', with_(TEXT, json_schema={'type': 'boolean'})),
    post('/v1/completions', with_(TEXT, grammar='root ::= "a"', json_schema={'type': 'boolean'})),
    post('/v1/completions', with_(TEXT, json_schema={'type': 'nonsense'})),
    post('/v1/completions', with_(TEXT, response_format={'type': 'json_object'}, max_tokens=8)),
    post('/v1/completions', with_(TEXT, response_format={'type': 'json_object', 'schema': {'enum': ['x']}}, max_tokens=8)),
    post('/v1/completions', with_(TEXT, response_format={'type': 'json_schema', 'schema': {'const': 5}}, max_tokens=8)),
    post('/v1/completions', with_(TEXT, response_format={'type': 'json_schema'})),
    post('/v1/completions', with_(TEXT, response_format={'type': 'text'})),
    post('/v1/completions', with_(TEXT, response_format={'type': 'xml'})),
    post('/v1/completions', with_(TEXT, response_format={})),
    post('/v1/completions', with_(TEXT, response_format=1)),
    post('/v1/completions', {}),
    post('/v1/completions', {'prompt': '', 'temperature': 0}),
    post('/v1/completions', {'prompt': 5}),
    post('/v1/completions', {'prompt': [[1], 2]}),
    post('/v1/completions', {'prompt': [512000]}),
    post('/v1/completions', {'prompt': [-1]}),
    post('/v1/completions', {'prompt': ['a'] * 65}),
    post('/v1/completions', {'prompt': ['a'] * 33, 'n': 2}),
    post('/v1/completions', {'prompt': 'word ' * 300}),
    post('/v1/completions', with_(TEXT, n=0)),
    post('/v1/completions', with_(TEXT, n=65)),
    post('/v1/completions', with_(TEXT, n=1.5)),
    post('/v1/completions', with_(TEXT, n=1.0)),
    post('/v1/completions', with_(TEXT, logprobs=129)),
    post('/v1/completions', with_(TEXT, stream='yes')),
    post('/v1/completions', with_(TEXT, echo=None)),
    post('/v1/completions', with_(TEXT, stop=['x'] * 32)),
    post('/v1/completions', with_(TEXT, stop=['x' * 501])),
    post('/v1/completions', with_(TEXT, stop=[5])),
    post('/v1/completions', with_(TEXT, id_slot=1)),
    post('/v1/completions', with_(TEXT, id_slot=2)),
    post('/v1/completions', with_(TEXT, temperature=-0.1)),
    post('/v1/completions', with_(TEXT, temperature=100.5)),
    post('/v1/completions', with_(TEXT, top_k=-2)),
    post('/v1/completions', with_(TEXT, lora=[{'id': 0, 'scale': 1}])),
    post('/v1/completions', with_(TEXT, max_tokens=-2)),
    post('/v1/completions', with_(TEXT, n_keep='all')),
    post('/v1/completions', with_(TEXT, **{'speculative.n_max': 0})),
    post('/v1/completions', with_(TEXT, **{'speculative.p_min': 2})),
]

NATIVE = [
    post('/completion', STORY),
    post('/completions', with_(STORY, **SAMPLING)),
    post('/completion', with_(STORY, samplers=['top_k', 'temp', 'typ_p'])),
    post('/completion', with_(STORY, samplers=['top_k', 'top_k'])),
    post('/completion', with_(STORY, samplers=['none'])),
    post('/completion', with_(STORY, samplers='top_k')),
    post('/completion', with_(STORY, samplers=[1])),
    post('/completion', with_(STORY, mirostat=2, seed=3, top_k=1)),
    post('/completion', with_(STORY, adaptive_target=0.5)),
    post('/completion', with_(STORY, adaptive_target='x')),
    post('/completion', with_(STORY, repeat_last_n=-1, dry_penalty_last_n=-1, top_k=-1, top_n_sigma=-1)),
    post('/completion', with_(STORY, n_probs=2, n_predict=3)),
    post('/completion', with_(STORY, n_probs=2, post_sampling_probs=True, n_predict=3)),
    post('/completion', with_(STORY, n_probs=2, stream=True, n_predict=3)),
    post('/completion', with_(STORY, stream=True, return_tokens=True)),
    post('/completion', with_(STORY, return_tokens=True)),
    post('/completion', with_(STORY, return_tokens=False)),
    post('/completion', with_(STORY, prompt=['Once', 'The cat'])),
    post('/completion', with_(STORY, prompt=['Once', 'The cat'], stream=True)),
    post('/completion', with_(STORY, prompt={'prompt_string': 'Once'})),
    post('/completion', with_(STORY, prompt={'prompt_string': 'Once', 'multimodal_data': []})),
    post('/completion', with_(STORY, prompt={'prompt_string': 'Once', 'multimodal_data': ['eA==']})),
    post('/completion', with_(STORY, prompt='a dog ' * 40, stream=True, return_progress=True, timings_per_token=True, n_predict=2)),
    post('/completion', with_(STORY, n_predict=-1, prompt='word ' * 120, ignore_eos=True,
                              response_fields=['truncated', 'tokens_predicted', 'stop_type', 'tokens_cached'])),
    post('/completion', with_(STORY, n_predict=1)),
    post('/completion', with_(STORY, stop=['little'], n_predict=20)),
    post('/completion', with_(STORY, logit_bias={'13': False})),
    post('/completion', with_(STORY, logit_bias={' girl': 5, '13': -100})),
    post('/completion', with_(STORY, logit_bias=[[13, False], [' there', -2.5]])),
    post('/completion', with_(STORY, logit_bias=[[13, 'x']])),
    post('/completion', with_(STORY, logit_bias=[[{}, 1]])),
    post('/completion', with_(STORY, logit_bias={'13': 'x'})),
    post('/completion', with_(STORY, logit_bias=[[600000, 1]])),
    post('/completion', with_(STORY, logit_bias=[[-1, 1]])),
    post('/completion', with_(STORY, logit_bias={'99999999999': 1})),
    post('/completion', with_(STORY, logit_bias=7)),
    post('/completion', with_(STORY, logit_bias=[[i % 300, 1] for i in range(1025)])),
    post('/completion', with_(STORY, ignore_eos=True)),
    post('/completion', with_(STORY, response_fields=['content', 'generation_settings/n_predict', 'none'])),
    post('/completion', with_(STORY, response_fields='content')),
    post('/completion', with_(STORY, response_fields=['x' * 201])),
    post('/completion', with_(STORY, n_probs=129)),
    post('/infill', {'input_prefix': 'a', 'input_suffix': 'b'}),
    post('/infill', {'input_prefix': 'a'}),
    post('/infill', {'input_prefix': 5, 'input_suffix': 'b'}),
]

CHATS = [
    post('/v1/chat/completions', CHAT),
    post('/chat/completions', CHAT),
    post('/v1/chat/completions', with_(CHAT, stream=True)),
    post('/v1/chat/completions', with_(CHAT, stream=True, stream_options={'include_usage': True})),
    post('/v1/chat/completions', with_(CHAT, stream=True, timings_per_token=True, return_progress=True)),
    post('/v1/chat/completions', with_(CHAT, n=2)),
    post('/v1/chat/completions', with_(CHAT, n=2, stream=True, max_tokens=2)),
    post('/v1/chat/completions', with_(CHAT, logprobs=True, top_logprobs=2)),
    post('/v1/chat/completions', with_(CHAT, logprobs=True, top_logprobs=1, stream=True, max_tokens=2)),
    post('/v1/chat/completions', with_(CHAT, logprobs=True)),
    post('/v1/chat/completions', with_(CHAT, top_logprobs=2)),
    post('/v1/chat/completions', with_(CHAT, top_logprobs=129, logprobs=True)),
    post('/v1/chat/completions', with_(CHAT, verbose=True)),
    post('/v1/chat/completions', with_(CHAT, id_slot=0)),
    post('/v1/chat/completions', with_(CHAT, max_completion_tokens=2)),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='required', max_tokens=40)),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='required', max_tokens=40, stream=True)),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice={'type': 'function', 'function': {'name': 'f'}}, max_tokens=40)),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice={'type': 'function', 'function': {'name': 'g'}})),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice={'type': 'function'})),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='none')),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='auto', parallel_tool_calls=True)),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='any')),
    post('/v1/chat/completions', with_(CHAT, tools=[TOOL], tool_choice='required', max_tokens=3)),
    post('/v1/chat/completions', with_(CHAT, tools={})),
    post('/v1/chat/completions', with_(CHAT, response_format={'type': 'json_schema', 'json_schema': {'schema': {'enum': [True]}}})),
    post('/v1/chat/completions', with_(CHAT, messages=[{'role': 'user', 'content': [{'type': 'text', 'text': 'Hi'}, {'type': 'text', 'text': ' you'}]}])),
    post('/v1/chat/completions', with_(CHAT, messages=[{'role': 'user', 'content': [{'type': 'image_url'}]}])),
    post('/v1/chat/completions', with_(CHAT, messages=[{'role': 'user', 'content': [{'type': 'input_audio'}]}])),
    post('/v1/chat/completions', with_(CHAT, messages=[{'role': 'user', 'content': [{}]}])),
    post('/v1/chat/completions', with_(CHAT, messages=[{'role': 'user', 'content': 5}])),
    post('/v1/chat/completions', with_(CHAT, messages=[{'content': 'x'}])),
    post('/v1/chat/completions', with_(CHAT, messages=[])),
    post('/v1/chat/completions', {}),
    post('/v1/chat/completions', with_(CHAT, messages=HI * 60)),
    post('/v1/chat/completions', with_(CHAT, chat_format='nonsense')),
    post('/v1/chat/completions', with_(CHAT, chat_template_kwargs=5)),
    post('/v1/chat/completions', with_(CHAT, reasoning_format='odd')),
    post('/v1/chat/completions', with_(CHAT, reasoning_budget=-2)),
    post('/v1/chat/completions', with_(CHAT, add_generation_prompt='x')),
    post('/v1/chat/completions', with_(CHAT, messages=BEGUN)),
    post('/v1/chat/completions', with_(CHAT, messages=BEGUN, add_generation_prompt=True, continue_final_message=True)),
    post('/v1/chat/completions/input_tokens', CHAT),
    post('/chat/completions/input_tokens', {}),
    post('/apply-template', {'messages': HI}),
    post('/apply-template', {'messages': HI, 'add_generation_prompt': False}),
    post('/apply-template', {'messages': BEGUN}),
    post('/apply-template', {'messages': BEGUN, 'continue_final_message': False}),
    post('/apply-template', {'messages': BEGUN, 'add_generation_prompt': True}),
    post('/apply-template', {'messages': [{'role': 'developer', 'content': 'Be kind'}] + HI, 'tools': [TOOL]}),
    post('/apply-template', {'messages': HI, 'documents': [{'title': 'a'}], 'chat_template_kwargs': {'x': 1}}),
    post('/apply-template', {'messages': HI, 'verbose': 5}),
    post('/predict', {'instances': [{'@requestFormat': 'chatCompletions', **CHAT}, {'@requestFormat': 'chatCompletions', **CHAT}]}),
    post('/predict', {'instances': [{'@requestFormat': 'other', **CHAT}]}),
    post('/predict', {'instances': []}),
]

MESSAGES = [
    post('/v1/messages', MESSAGE),
    post('/v1/messages', with_(MESSAGE, stream=True)),
    post('/v1/messages', with_(MESSAGE, system='Be kind')),
    post('/v1/messages', with_(MESSAGE, system=[{'type': 'text', 'text': 'Be '}, {'type': 'text', 'text': 'kind'}])),
    post('/v1/messages', with_(MESSAGE, system=[{'type': 'image'}])),
    post('/v1/messages', with_(MESSAGE, stop_sequences=['e'], max_tokens=20)),
    post('/v1/messages', with_(MESSAGE, messages=[{'role': 'user', 'content': [{'type': 'text', 'text': 'Hi'}]}])),
    post('/v1/messages', with_(MESSAGE, messages=[])),
    post('/v1/messages', with_(MESSAGE, messages=[{'role': 'user'}])),
    post('/v1/messages', with_(MESSAGE, messages=[{'role': 'user', 'content': [{'type': 'image'}]}])),
    post('/v1/messages', with_(MESSAGE, tools=[{'name': 'f', 'description': 'does', 'input_schema': TOOL['function']['parameters']}],
                               tool_choice={'type': 'any'}, max_tokens=40)),
    post('/v1/messages', with_(MESSAGE, tools=[{'name': 'f', 'input_schema': TOOL['function']['parameters']}],
                               tool_choice={'type': 'tool', 'name': 'f'}, max_tokens=40, stream=True)),
    post('/v1/messages', with_(MESSAGE, tools=[{'name': 'f', 'input_schema': {}}], tool_choice={'type': 'none', 'disable_parallel_tool_use': True})),
    post('/v1/messages', with_(MESSAGE, messages=HI + [
        {'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 'hm'}, {'type': 'redacted_thinking'}, {'type': 'text', 'text': 'a'},
                                          {'type': 'tool_use', 'id': 'c1', 'name': 'f', 'input': {'a': True}}]},
        {'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 'c1', 'content': [{'type': 'text', 'text': 'done'}]}]}])),
    post('/v1/messages', with_(MESSAGE, messages=HI + [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'c1'}]}])),
    post('/v1/messages', with_(MESSAGE, thinking={'type': 'disabled'})),
    post('/v1/messages', with_(MESSAGE, thinking={'type': 'enabled', 'budget_tokens': 10})),
    post('/v1/messages/count_tokens', with_(MESSAGE, system='Be kind')),
    post('/v1/messages/count_tokens', {}),
    post('/v1/responses', {'input': 'Hi', 'max_output_tokens': 4, 'temperature': 0}),
    post('/responses', {'input': 'Hi', 'max_output_tokens': 4, 'temperature': 0, 'stream': True}),
    post('/v1/responses', {'input': 'Hi', 'max_output_tokens': 4, 'temperature': 0, 'instructions': 'Be kind', 'metadata': {'a': 'b'}}),
    post('/v1/responses', {'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'Hi'}]}], 'max_output_tokens': 4, 'temperature': 0}),
    post('/v1/responses', {'input': [{'role': 'user', 'content': 'Hi'}, {'type': 'function_call', 'call_id': 'c', 'name': 'f', 'arguments': '{}'},
                                     {'type': 'function_call_output', 'call_id': 'c', 'output': 'done'}], 'max_output_tokens': 4, 'temperature': 0}),
    post('/v1/responses', {'input': 'Hi', 'max_output_tokens': 40, 'temperature': 0, 'tool_choice': 'required',
                           'tools': [{'type': 'function', **TOOL['function']}]}),
    post('/v1/responses', {'input': 'Hi', 'max_output_tokens': 40, 'temperature': 0, 'tool_choice': 'required', 'stream': True,
                           'tools': [{'type': 'function', **TOOL['function']}]}),
    post('/v1/responses', {'input': 'Hi', 'max_output_tokens': 9, 'temperature': 0,
                           'text': {'format': {'type': 'json_schema', 'schema': {'enum': ['x']}}}}),
    post('/v1/responses', {'input': [{'role': 'user', 'content': [{'type': 'input_image'}]}]}),
    post('/v1/responses', {'input': 'Hi', 'previous_response_id': 'x'}),
    post('/v1/responses', {}),
    post('/v1/responses', {'input': 5}),
    post('/v1/responses/input_tokens', {'input': 'Hi'}),
    post('/api/chat', {'model': 'tales', 'messages': HI, 'options': {'num_predict': 3, 'temperature': 0}}),
    post('/api/chat', {'messages': HI, 'stream': False, 'options': {'num_predict': 3, 'temperature': 0, 'stop': ['zz'], 'top_k': 3}}),
    post('/api/chat', {'messages': HI, 'stream': False, 'options': {'num_predict': 3, 'temperature': 0}, 'format': 'json'}),
    post('/api/chat', {'messages': HI, 'stream': False, 'options': {'num_predict': 9, 'temperature': 0}, 'format': {'enum': [1]}}),
    post('/api/chat', {'messages': HI, 'stream': False, 'options': {'num_predict': 40, 'temperature': 0}, 'tools': [TOOL], 'think': False}),
    post('/api/chat', {'messages': HI + [{'role': 'assistant', 'content': '', 'thinking': 'hm', 'tool_calls': [{'function': {'name': 'f', 'arguments': {}}}]},
                                         {'role': 'tool', 'content': 'x'}], 'stream': False, 'options': {'num_predict': 2, 'temperature': 0}}),
    post('/api/chat', {'messages': [{'role': 'user', 'content': 'x', 'images': ['eA==']}]}),
    post('/api/chat', {'messages': HI, 'stream': 5}),
    post('/api/chat', {'messages': HI, 'stream': False, 'think': 'low', 'options': {'num_predict': -1, 'temperature': 0, 'stop': [' ']}}),
    post('/api/generate', {'prompt': 'Hi', 'system': 'Be kind', 'options': {'num_predict': 3, 'temperature': 0}}),
    post('/api/generate', {'prompt': 'Hi', 'stream': False, 'options': {'num_predict': 3, 'temperature': 0}}),
    post('/api/generate', {'prompt': 'Hi', 'images': ['eA==']}),
    post('/api/show', {'model': 'tales'}),
    get('/api/version'),
    get('/api/tags'),
    get('/api/ps'),
]

SERVICE = [
    get('/health'),
    get('/v1/health'),
    ('HEAD', '/health', None, {}),
    ('POST', '/health', {}, {}),
    ('DELETE', '/v1/completions', None, {}),
    ('OPTIONS', '/v1/models', None, {'Origin': 'http://localhost:99'}),
    ('OPTIONS', '/v1/models', None, {'Origin': 'http://example.com'}),
    get('/v1/models'),
    get('/models'),
    get('/v1/models/tales'),
    get('/v1/models/other'),
    get('/nothing'),
    get('/cors-proxy'),
    get('/tokenizer_info'),
    get('/slots'),
    get('/lora-adapters'),
    post('/lora-adapters', []),
    post('/lora-adapters', {}),
    post('/lora-adapters', [{'id': 0, 'scale': 1}]),
    post('/tokenize', {'content': 'Once upon a time'}),
    post('/tokenize', {'content': 'Once upon', 'with_pieces': True, 'add_special': True}),
    post('/tokenize', {'prompt': '<|im_start|>a', 'parse_special': False}),
    post('/tokenize', {'prompt': '<|im_start|>a', 'parse_special': True}),
    post('/tokenize', {'content': 'é中', 'with_pieces': True}),
    post('/tokenize', {}),
    post('/tokenize', {'content': 5}),
    post('/detokenize', {'tokens': [398, 397, 260, 371]}),
    post('/detokenize', {'tokens': []}),
    post('/detokenize', {'tokens': [600000]}),
    post('/detokenize', {'tokens': [-1]}),
    post('/detokenize', {}),
    post('/v1/embeddings', {'input': 'a'}),
    post('/v1/rerank', {'query': 'a', 'documents': ['b']}),
    post('/slots/0?action=save', {'filename': 'a.slot'}),
    post('/slots/0?action=restore', {'filename': 'a.slot'}),
    post('/slots/0?action=erase', {}),
    post('/slots/0?action=save', {'filename': '../a'}),
    post('/slots/0?action=save', {}),
    post('/slots/0?action=none', {}),
    post('/slots/0', {}),
    post('/slots/7?action=erase', {}),
    post('/slots/x?action=erase', {}),
    get('/slots/0?action=erase'),
    get('/v1/stream?conv_id=none'),
    get('/v1/stream'),
    ('DELETE', '/v1/stream?conv_id=none', None, {}),
    post('/models/load', {'model': 'tales'}),
    post('/models/unload', {'model': 'tales'}),
    ('POST', '/v1/completions', b'{"prompt":', {}),
    ('POST', '/v1/completions', b'[1]', {}),
    ('POST', '/v1/completions', b'', {}),
    ('POST', '/v1/completions', b'{"prompt": "\xff"}', {}),
    ('POST', '/v1/completions', b'{"prompt": "a", "prompt": "b", "max_tokens": 1, "temperature": 0}', {}),
    ('POST', '/v1/completions', b'[' * 3000, {}),
    post('/v1/messages', 5),
    post('/api/chat', [1]),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Content-Type': 'text/plain'}),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Origin': 'http://example.com'}),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Origin': 'http://localhost:99'}),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Origin': 'http://127.0.0.1'}),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Host': 'example.com'}),
    ('POST', '/v1/completions', json.dumps(TEXT).encode(), {'Transfer-Encoding': 'chunked'}),
    get('/v1/models', Host='localhost'),
    get('/v1/models', Host='evil.example'),
    get('/plan.json'),
    get('/memory'),
    get('/props'),
    get('/metrics'),
]

KEYS = [
    get('/llm/v1/models'),
    get('/v1/models'),
    get('/health'),
    get('/llm/health'),
    get('/llm/v1/models', Authorization='Bearer first'),
    get('/llm/v1/models', Authorization='bearer second'),
    get('/llm/v1/models', Authorization='Bearer firs'),
    get('/llm/v1/models', Authorization='Bearer firstx'),
    get('/llm/v1/models', Authorization='Basic first'),
    get('/llm/v1/models', **{'X-Api-Key': 'second'}),
    get('/llm/v1/models', **{'X-Api-Key': 'wrong', 'Authorization': 'Bearer first'}),
    get('/llm/nothing', **{'X-Api-Key': 'first'}),
    get('/llmx', **{'X-Api-Key': 'first'}),
    get('/llm', **{'X-Api-Key': 'first'}),
    get('/llm/slots', **{'X-Api-Key': 'first'}),
    get('/llm/metrics', **{'X-Api-Key': 'first'}),
    get('/llm/props', **{'X-Api-Key': 'first'}),
    get('/llm/tokenizer_info', **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI, 'reasoning_effort': 'none'}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI, 'reasoning_budget': 0}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI, 'thinking_budget_tokens': 0}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI, 'enable_thinking': False}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': HI, 'chat_template_kwargs': {'enable_thinking': False}}, **{'X-Api-Key': 'first'}),
    post('/llm/apply-template', {'messages': BEGUN[:1] + [with_(BEGUN[1], reasoning_content='hm')]}, **{'X-Api-Key': 'first'}),
    post('/llm/v1/completions', TEXT, **{'X-Api-Key': 'first'}),
    post('/llm/v1/completions', TEXT, **{'X-Api-Key': 'second'}),  # does not share the first one's prefix
    post('/llm/v1/completions', TEXT, **{'X-Api-Key': 'first'}),
    post('/llm/v1/chat/completions', CHAT, **{'X-Api-Key': 'first'}),
    post('/llm/v1/chat/completions', with_(CHAT, stream=True), **{'X-Api-Key': 'first'}),
    post('/llm/v1/chat/completions', with_(CHAT, reasoning_format='none'), **{'X-Api-Key': 'first'}),
    post('/llm/v1/messages', with_(MESSAGE, stream=True), **{'X-Api-Key': 'first'}),
    post('/llm/v1/messages', MESSAGE, **{'X-Api-Key': 'first'}),
    post('/llm/v1/responses', {'input': 'Hi', 'max_output_tokens': 4, 'temperature': 0, 'stream': True}, **{'X-Api-Key': 'first'}),
    post('/llm/v1/responses', {'input': 'Hi', 'max_output_tokens': 4, 'temperature': 0}, **{'X-Api-Key': 'first'}),
    post('/llm/api/chat', {'messages': HI, 'options': {'num_predict': 3, 'temperature': 0}}, **{'X-Api-Key': 'first'}),
    post('/llm/completion', {'prompt': 'Once', 'temperature': 0}, **{'X-Api-Key': 'first'}),
    ('OPTIONS', '/llm/v1/models', None, {'Origin': 'http://example.com'}),
    ('POST', '/llm/v1/completions', json.dumps(TEXT).encode(), {'Origin': 'http://example.com', 'X-Api-Key': 'first'}),
    ('POST', '/llm/v1/completions', json.dumps(TEXT).encode(), {'Origin': 'http://other.example', 'X-Api-Key': 'first'}),
]

VECTORS = [
    post('/v1/embeddings', {'input': 'Once upon a time'}),
    post('/v1/embeddings', {'input': ['Once', [398, 397]], 'encoding_format': 'base64'}),
    post('/v1/embeddings', {'input': [398, 397]}),
    post('/v1/embeddings', {'content': 'Once', 'embd_normalize': -1}),
    post('/v1/embeddings', {'content': 'Once', 'embd_normalize': 0}),
    post('/v1/embeddings', {'content': 'Once', 'embd_normalize': 1}),
    post('/v1/embeddings', {'input': 'a', 'dimensions': 3}),
    post('/v1/embeddings', {'input': 'a', 'encoding_format': 'hex'}),
    post('/v1/embeddings', {}),
    post('/v1/embeddings', {'input': ''}),
    post('/v1/embeddings', {'input': 'word ' * 300}),
    post('/embedding', {'content': 'Once'}),
    post('/embeddings', {'content': ['Once', 'The cat']}),
    post('/api/embed', {'input': ['Once', 'The cat']}),
    post('/api/embeddings', {'prompt': 'Once'}),
    post('/v1/rerank', {'query': 'a', 'documents': ['b']}),
    post('/v1/completions', TEXT),
    post('/api/show', {}),
    get('/v1/models'),
    get('/slots'),
    get('/metrics'),
]

TLS = [get('/health'), get('/v1/models'), post('/v1/completions', TEXT), post('/v1/chat/completions', with_(CHAT, stream=True)), get('/nothing')]

SETS = {'tls': TLS, 'plain': COMPLETIONS + NATIVE + CHATS + MESSAGES + SERVICE, 'keys': KEYS, 'vectors': VECTORS}
HEADERS = ('content-type', 'access-control-allow-origin', 'access-control-allow-methods', 'access-control-allow-headers', 'access-control-max-age',
           'retry-after', 'allow', 'www-authenticate', 'x-content-type-options', 'vary', 'cache-control')
# Values that differ from run to run or between machines: only their types are compared.
VARIES = re.compile(r'(^id$|_id$|^created|_at$|_ms$|_per_second$|_duration$|^date$|_bytes|bytes_|^size$|^free|^total$|^mapped|fingerprint|^build|^version$|'
                    r'_path$|^path$|^time|threads|^used$|^peak|^offset|^begin$|^end$|nanoseconds|^device|^cpu|modules)')
# Only keys and types of these: they say much about the machine.
SHAPE = re.compile(r'/(plan\.json|memory)$')


CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


def exchange(address, method, path, body, headers, bytewise):
    """(status, headers, body) of a request on a connection of its own."""
    data = b'' if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f'{method} {path} HTTP/1.1', 'Connection: close']
    lines += [f'Host: {address[0]}:{address[1]}'] if 'Host' not in headers else []
    lines += [f'{name}: {value}' for name, value in headers.items()]
    if headers.get('Transfer-Encoding') == 'chunked':
        data = b''.join(b'%x\r\n%s\r\n' % (len(data[i:i + 7]), data[i:i + 7]) for i in range(0, len(data), 7)) + b'0\r\n\r\n'
    elif body is not None:
        lines += [f'Content-Length: {len(data)}']
    message = '\r\n'.join(lines).encode() + b'\r\n\r\n' + data
    with socket.create_connection(address[:2], timeout=60) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = CONTEXT.wrap_socket(plain) if address[2] else plain
        assert not address[2] or connection.version() in ('TLSv1.2', 'TLSv1.3')
        parts = [message[i:i + 1] for i in range(len(message))] if bytewise and len(message) < 1000 else [message]
        for part in parts:
            connection.sendall(part)
        answer = b''
        while True:
            more = connection.recv(65536)
            if not more:
                break
            answer += more
    head, _, rest = answer.partition(b'\r\n\r\n')
    fields = dict(line.lower().split(': ', 1) for line in head.decode('latin1').split('\r\n')[1:])
    if fields.get('transfer-encoding') == 'chunked':
        whole = b''
        while rest:
            size, _, rest = rest.partition(b'\r\n')
            whole, rest = whole + rest[:int(size, 16)], rest[int(size, 16) + 2:]
        rest = whole
    return int(head.split(b' ')[1]), {k: v for k, v in fields.items() if k in HEADERS}, rest.decode('utf-8', 'replace')


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def shape_of(value):
    if isinstance(value, dict):
        return {key: shape_of(member) for key, member in value.items()}
    return [shape_of(value[0])] if isinstance(value, list) and value else type(value).__name__


def read_body(path, text):
    """JSON, or the lines of a stream with their JSON, or a text."""
    value = value_of(text)
    if SHAPE.search(path):
        return shape_of(value)
    if not isinstance(value, str) or '\n' not in text:
        return value
    if path.endswith('/metrics'):
        return [re.sub(r' [-0-9.e+]+$', ' N', line) if re.search('seconds|bytes|rate|_per_', line) else line for line in text.split('\n')]
    if re.match(r'<!doctype', text):
        return text[:40]
    lines = [line for line in text.split('\n') if line and not line.startswith(': ping')]
    return [[m[1], value_of(m[2])] for m in (re.match(r'(data: |event: |)(.*)$', line) for line in lines)]


def anonymous(value, name=''):
    """What is recorded: without the values that vary."""
    if isinstance(value, dict):
        return {key: anonymous(member, key) for key, member in value.items()}
    if isinstance(value, list):
        return [anonymous(member, name) for member in value]
    if not name or not VARIES.search(name) or isinstance(value, bool) or not value:
        return round(value, 5) if isinstance(value, float) else value
    return '*' if isinstance(value, str) else type(value)(1)


def differences(want, got, name='', where=''):
    if name and VARIES.search(name) and not isinstance(want, (dict, list)):
        # Rates are 0 where nothing was measured.
        zero = name.endswith(('_per_second', '_per_token_ms')) and (want == 0) != (got == 0)
        if isinstance(want, bool) == isinstance(got, bool) and (want is None) == (got is None) and isinstance(want, str) == isinstance(got, str) and not zero:
            return
    elif isinstance(want, dict) and isinstance(got, dict) and list(want) == list(got):
        for key in want:
            yield from differences(want[key], got[key], key, f'{where}.{key}')
        return
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        if name.startswith('embedding') and want and all(isinstance(x, float) for x in want):  # kernels of other levels round otherwise
            worst, largest = max(abs(a - b) for a, b in zip(want, got)), max(abs(x) for x in want)
            if worst > 0.03 * largest:
                yield f'{where}: an element differs by {worst}, the largest is {largest}'
            return
        for i, (a, b) in enumerate(zip(want, got)):
            yield from differences(a, b, name, f'{where}[{i}]')
        return
    elif isinstance(want, float) and isinstance(got, (int, float)) and not isinstance(got, bool):
        if abs(want - got) <= 0.03 + 0.02 * abs(want):
            return
    elif want == got and type(want) is type(got):
        return
    elif name == 'embedding' and isinstance(want, str) and isinstance(got, str) and len(want) == len(got):
        return  # base64
    yield f'{where or "answer"}: {json.dumps(got)[:2000]} instead of {json.dumps(want)[:2000]}'


def main():
    url, which, path = sys.argv[1:4]
    record, bytewise = '--record' in sys.argv, '--bytes' in sys.argv
    parts = urllib.parse.urlsplit(url)
    address, failures = (parts.hostname, parts.port, parts.scheme == 'https'), 0
    with open(path, encoding='utf-8') as file:
        expected = json.load(file)
    known, recorded = expected.get(which, []), []
    for i, (method, target, body, headers) in enumerate(SETS[which]):
        name = f'{method} {target} {json.dumps(body) if not isinstance(body, bytes) else body.decode("latin1")}'[:160]
        status, fields, text = exchange(address, method, target, body, headers, bytewise)
        answer = [name, status, fields, read_body(target, text)]
        recorded.append(answer[:3] + [anonymous(answer[3])])
        if record:
            continue
        wrong = list(differences(known[i], answer)) if i < len(known) else ['there is no recorded answer']
        for one in wrong[:3]:
            print(f'FAILED: {which} {i}: {name}: {one}')
        failures += bool(wrong)
    if record:
        expected[which] = recorded
        with open(path, 'w', encoding='utf-8') as file:
            sets = [json.dumps(name) + ': [\n' + ',\n'.join(json.dumps(one, ensure_ascii=False, separators=(',', ':')) for one in answers) + '\n]'
                    for name, answers in expected.items()]
            file.write('{' + ',\n'.join(sets) + '}\n')
    return failures > 0


if __name__ == '__main__':
    sys.exit(main())
