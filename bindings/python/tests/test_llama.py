"""Llama on the included model and on tiny ones that `tenon synth` makes."""
import gc
import json
import os
import pickle
import subprocess
import tempfile
import threading
import unittest
import warnings

from tenon import (POOLING_NONE, Grammar, Llama, LogitsProcessorList, Sampler, StoppingCriteriaList, TenonError, set_log)
from tenon._library import lib

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', '..')
TALES = os.path.join(ROOT, 'models', 'tales.gguf')
PROGRAM = os.environ.get('TENON_PROGRAM', os.path.join(ROOT, 'build', 'bin', 'tenon'))
SHAPE = 'layers=1,width=64,heads=2,kv=2,head=32,ffn=64,vocab=512,ctx=256'
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def text_of(completion):
    return completion['choices'][0]['text']


class Stories(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llama = Llama(TALES, n_ctx=512, n_threads=2, n_seqs=2, seed=3, repeatable=True)

    @classmethod
    def tearDownClass(cls):
        cls.llama.close()

    def test_a_completion_has_the_shape_of_openai_and_is_repeatable(self):
        result = self.llama.create_completion('Once upon a time', max_tokens=12, temperature=0)
        self.assertEqual(result['object'], 'text_completion')
        self.assertEqual(result['usage'], {'prompt_tokens': 5, 'completion_tokens': 12, 'total_tokens': 17})
        self.assertEqual(result['choices'][0]['finish_reason'], 'length')
        self.assertEqual(text_of(result), ', there was a little girl named Lily. She loved to')
        self.assertEqual(text_of(self.llama('Once upon a time', max_tokens=12, temperature=0)), text_of(result))
        warm = [text_of(self.llama('Once', max_tokens=12, temperature=2.0, top_k=0, seed=seed)) for seed in (1, 1, 2)]
        self.assertEqual(warm[0], warm[1])
        self.assertNotEqual(warm[0], warm[2])

    def test_a_stream_is_the_same_text_in_pieces(self):
        whole = self.llama.create_completion('The fox', max_tokens=20, temperature=0, echo=True)
        chunks = list(self.llama.create_completion('The fox', max_tokens=20, temperature=0, echo=True, stream=True))
        self.assertEqual(''.join(text_of(chunk) for chunk in chunks), text_of(whole))
        self.assertTrue(text_of(whole).startswith('The fox'))
        self.assertEqual([chunk['choices'][0]['finish_reason'] for chunk in chunks][-1], 'length')
        self.assertGreater(len(chunks), 10)

    def test_stop_strings_end_the_text_and_are_no_part_of_it(self):
        result = self.llama('Once upon a time', max_tokens=60, temperature=0, stop=['Lily'])
        self.assertEqual(text_of(result), ', there was a little girl named ')
        self.assertEqual(result['choices'][0]['finish_reason'], 'stop')

    def test_logprobs_are_those_of_the_logits(self):
        result = self.llama('Once upon a time', max_tokens=3, temperature=0, logprobs=2)['choices'][0]['logprobs']
        self.assertEqual(''.join(result['tokens']), ', there was')
        self.assertEqual(result['text_offset'], [0, 1, 7])
        for logprob, top in zip(result['token_logprobs'], result['top_logprobs']):
            self.assertEqual(max(top.values()), logprob)
            self.assertEqual(len(top), 2)
        sampler = Sampler(self.llama.n_vocab(), samplers=[], temperature=1.0, seed=1)
        sampler.sample(self.llama.eval(self.llama.tokenize('Once upon a time')))
        first = next(iter(sampler.candidates(1).values()))
        self.assertAlmostEqual(first, result['token_logprobs'][0], places=4)

    def test_tokens_and_text_are_inverse(self):
        tokens = self.llama.tokenize(b'Tom had a big red ball.', add_bos=False)
        self.assertEqual(self.llama.detokenize(tokens), b'Tom had a big red ball.')
        self.assertEqual(self.llama.tokenize('Tom had a big red ball.'), [self.llama.token_bos(), *tokens])
        self.assertEqual(self.llama.detokenize(tokens[1:], prev_tokens=tokens[:1]), b' had a big red ball.')
        self.assertEqual(self.llama.tokenize('', add_bos=False), [])
        with self.assertRaises(TenonError):
            self.llama.detokenize([10**6])

    def test_a_grammar_decides_what_is_written(self):
        grammar = Grammar('root ::= " yes" | " no"')
        self.assertIn(text_of(self.llama('Is a fox an animal? Answer:', grammar=grammar, max_tokens=8)), (' yes', ' no'))
        schema = {'type': 'object', 'properties': {'legs': {'enum': [2, 4]}}, 'required': ['legs'], 'additionalProperties': False}
        answer = text_of(self.llama('A fox:', grammar=Grammar.from_json_schema(schema), max_tokens=40))
        self.assertIn(json.loads(answer)['legs'], (2, 4))
        self.assertTrue(grammar.matches(' no'))
        self.assertFalse(grammar.matches(' n'))
        self.assertFalse(grammar.matches('maybe'))
        self.assertTrue(Grammar.json().matches('{"a": [1, null]}'))

    def test_logits_processors_and_criteria_take_part(self):
        seen = []

        def ban_comma(tokens, scores):
            seen.append((len(tokens), len(scores)))
            scores[comma] = float('-inf')
        comma = self.llama.tokenize(',', add_bos=False)[-1]
        text = text_of(self.llama('Once upon a time', max_tokens=12, temperature=0, logits_processor=LogitsProcessorList([ban_comma])))
        self.assertNotIn(',', text)
        self.assertEqual(seen[0], (5, self.llama.n_vocab()))
        self.assertEqual(seen[-1][0], 16)
        only = LogitsProcessorList([lambda tokens, scores: [0.0 if i == comma else -1e9 for i in range(len(scores))]])
        self.assertEqual(text_of(self.llama('Once', max_tokens=3, temperature=0, logits_processor=only)), ',,,')
        until = StoppingCriteriaList([lambda tokens, scores: len(tokens) >= 9])
        self.assertEqual(self.llama('Once upon a time', max_tokens=50, stopping_criteria=until)['usage']['completion_tokens'], 4)
        with self.assertRaisesRegex(ValueError, '2 numbers'):
            self.llama('Once', logits_processor=LogitsProcessorList([lambda tokens, scores: [1.0, 2.0]]))

    def test_bias_and_parameters_reach_the_sampler(self):
        comma = self.llama.tokenize(',', add_bos=False)[-1]
        self.assertEqual(text_of(self.llama('Once', max_tokens=2, temperature=0, logit_bias={comma: 100.0})), ',,')
        self.assertEqual(text_of(self.llama('Once upon a time', max_tokens=12, top_k=1, temperature=5.0, samplers=['top_k', 'temperature'])),
                         ', there was a little girl named Lily. She loved to')
        for wrong in ({'no_such': 1}, {'n_chain': 1}):
            with self.assertRaises(TypeError):
                self.llama('Once', **wrong)
        with self.assertRaisesRegex(TenonError, 'top_p'):
            self.llama('Once', top_p=7.0)
        with self.assertRaisesRegex(TenonError, 'temperature'):  # the message lists all names
            self.llama('Once', samplers=['warmth'])

    def test_a_state_continues_where_it_was_saved(self):
        tokens = self.llama.tokenize('Once upon a time there was a fox that')
        logits = self.llama.eval(tokens)
        state = pickle.loads(pickle.dumps(self.llama.save_state()))
        self.assertEqual(state.tokens, tokens)
        self.llama.eval(self.llama.tokenize('Something else'))
        self.llama.reset()
        self.llama.load_state(state)
        before = lib.tn_session_get_stats(self.llama._engine.session)
        self.assertTrue(self.llama.eval(tokens) == logits)
        after = lib.tn_session_get_stats(self.llama._engine.session)
        self.assertEqual((after.prompt_tokens - before.prompt_tokens) + (after.generated_tokens - before.generated_tokens), 1)
        state.data = state.data[:-1] + bytes([state.data[-1] ^ 1])
        with self.assertRaises(TenonError):
            self.llama.load_state(state)

    def test_chat_and_its_stream(self):
        messages = [{'role': 'user', 'content': 'Tell me a story.'}]
        result = self.llama.create_chat_completion(messages, max_tokens=16, temperature=0, logprobs=True, top_logprobs=1)
        message = result['choices'][0]['message']
        self.assertEqual((result['object'], message['role']), ('chat.completion', 'assistant'))
        self.assertEqual(len(result['choices'][0]['logprobs']['content']), 16)
        chunks = list(self.llama.create_chat_completion(messages, max_tokens=16, temperature=0, stream=True))
        self.assertEqual(chunks[0]['choices'][0]['delta']['role'], 'assistant')
        self.assertEqual(''.join(chunk['choices'][0]['delta'].get('content', '') for chunk in chunks), message['content'])
        self.assertEqual(chunks[-1]['choices'][0]['finish_reason'], 'length')
        form = {'type': 'json_schema', 'json_schema': {'schema': {'type': 'object', 'properties': {'n': {'type': 'integer', 'maximum': 9, 'minimum': 1}},
                                                                  'required': ['n'], 'additionalProperties': False}}}
        answer = self.llama.create_chat_completion(messages, max_tokens=40, response_format=form)['choices'][0]['message']['content']
        self.assertIn(json.loads(answer)['n'], range(1, 10))
        with self.assertRaisesRegex(ValueError, 'yaml'):
            self.llama.create_chat_completion(messages, response_format={'type': 'yaml'})

    def test_tools_make_calls(self):
        tool = {'type': 'function', 'function': {'name': 'feed', 'parameters': {
            'type': 'object', 'properties': {'animal': {'enum': ['fox', 'hen']}}, 'required': ['animal'], 'additionalProperties': False}}}
        messages = [{'role': 'user', 'content': 'Feed one.'}]
        self.assertIn('feed', self.llama.apply_chat_template(messages, tools=[tool]))
        choice = self.llama.create_chat_completion(messages, tools=[tool], tool_choice='required', max_tokens=200, seed=4)['choices'][0]
        self.assertEqual(choice['finish_reason'], 'tool_calls')
        call = choice['message']['tool_calls'][0]['function']
        self.assertEqual(call['name'], 'feed')
        self.assertIn(json.loads(call['arguments'])['animal'], ('fox', 'hen'))
        deltas = [chunk['choices'][0]['delta'].get('tool_calls') for chunk in self.llama.create_chat_completion(
            messages, tools=[tool], tool_choice='required', max_tokens=200, seed=4, stream=True)]
        parts = [part[0]['function'] for part in deltas if part]
        self.assertEqual(''.join(part['arguments'] for part in parts), call['arguments'])

    def test_streams_of_threads_do_not_disturb_each_other(self):
        prompts = ['Once upon a time', 'The fox', 'Tom had', 'One day', 'A bird', 'She saw']
        alone = [text_of(self.llama(prompt, max_tokens=24, temperature=0)) for prompt in prompts]
        together, failures = [''] * len(prompts), []

        def run(i):
            try:
                for chunk in self.llama(prompts[i], max_tokens=24, temperature=0, stream=True):
                    together[i] += text_of(chunk)
            except Exception as error:  # pylint: disable=broad-except
                failures.append(error)
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failures, [])
        self.assertEqual(together, alone)

    def test_streams_that_one_thread_leaves_open(self):
        first, second = (self.llama(prompt, max_tokens=5, stream=True) for prompt in ('One', 'Two'))
        next(first), next(second)
        with self.assertRaisesRegex(RuntimeError, 'n_seqs'):
            self.llama('Three', max_tokens=1)
        first.close()
        self.llama('Three', max_tokens=1)
        second.close()

    def test_a_prompt_that_is_too_long_is_an_error_and_a_full_context_an_end(self):
        with self.assertRaises(TenonError) as caught:
            self.llama('fox ' * 2000, max_tokens=1)
        self.assertEqual(caught.exception.name, 'TN_E_FULL')
        result = self.llama('Once', max_tokens=None, temperature=0, logit_bias={self.llama.token_eos(): float('-inf')})
        self.assertEqual(result['choices'][0]['finish_reason'], 'length')
        self.assertGreater(result['usage']['total_tokens'], 400)


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.plain, cls.bert = (os.path.join(cls.folder.name, name) for name in ('plain.gguf', 'bert.gguf'))
        for path, arch in ((cls.plain, 'llama'), (cls.bert, 'nomic-bert')):
            subprocess.run([PROGRAM, 'synth', path, '--arch', arch, '--shape', SHAPE], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_errors_carry_the_message(self):
        with self.assertRaisesRegex(TenonError, 'nowhere.gguf: No such file') as caught:
            Llama('/nowhere.gguf')
        self.assertEqual(caught.exception.name, 'TN_E_IO')
        self.assertEqual(str(pickle.loads(pickle.dumps(caught.exception))), str(caught.exception))
        with self.assertRaisesRegex(TypeError, 'n_context'):
            Llama(self.plain, n_context=3)
        with self.assertRaisesRegex(TenonError, 'q8_0'):
            Llama(self.plain, type_k='q9')
        with self.assertRaisesRegex(TenonError, 'line|column'):
            Grammar('root ::= (')
        with self.assertRaisesRegex(TenonError, 'memory|fit'):
            Llama(self.plain, n_ctx=2**30, devices=['cpu'])

    def test_embeddings(self):
        with Llama(self.bert, n_ctx=64) as llama:
            row, count = llama.embed('a fox', return_count=True, normalize=True)
            self.assertEqual((len(row), count), (llama.n_embd(), len(llama.tokenize('a fox', special=True))))
            self.assertAlmostEqual(sum(x * x for x in row), 1.0, places=4)
            rows = llama.create_embedding(['a fox', 'a hen'])
            self.assertEqual([item['index'] for item in rows['data']], [0, 1])
            self.assertEqual(rows['data'][0]['embedding'], llama.embed('a fox'))
            self.assertNotEqual(rows['data'][0]['embedding'], rows['data'][1]['embedding'])
        with Llama(self.plain, n_ctx=64, embedding=True, pooling_type=POOLING_NONE) as llama:
            self.assertEqual(len(llama.embed('a fox')), len(llama.tokenize('a fox', special=True)))
        with Llama(self.plain, n_ctx=64) as llama:
            with self.assertRaisesRegex(RuntimeError, 'embedding=True'):
                llama.embed('a fox')

    def test_a_closed_model_says_so(self):
        llama = Llama(self.plain, n_ctx=64, chat_template=CHATML)
        self.assertEqual(llama.apply_chat_template([{'role': 'user', 'content': 'Hi'}]),
                         '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n')
        stream = llama('a', max_tokens=10, stream=True, logprobs=0)
        next(stream)
        llama.close()
        llama.close()
        with self.assertRaisesRegex(RuntimeError, 'closed'):
            list(stream)
        for call in (lambda: llama('a'), lambda: llama.tokenize('a'), llama.save_state, llama.n_ctx, llama.reset):
            with self.assertRaisesRegex(RuntimeError, 'closed'):
                call()

    def test_vocabulary_only_and_progress(self):
        with Llama(self.plain, vocab_only=True) as llama:
            self.assertTrue(llama.tokenize('a fox'))
            with self.assertRaisesRegex(RuntimeError, 'vocab_only'):
                llama('a')
        seen = []
        Llama(self.plain, n_ctx=64, use_mmap=False, progress=lambda done, total: seen.append((done, total))).close()
        self.assertEqual(seen[-1][0], seen[-1][1])
        with self.assertRaises(TenonError) as caught:
            Llama(self.plain, n_ctx=64, use_mmap=False, progress=lambda done, total: False)
        self.assertEqual(caught.exception.name, 'TN_E_ABORTED')

    def test_log_messages_go_where_they_are_sent(self):
        lines = []
        set_log(lambda level, text: lines.append((level, text)), 1)
        try:
            lib.tn_log(0, b'too quiet')
            lib.tn_log(1, b'a fox')
        finally:
            set_log()
        self.assertEqual(lines, [(1, 'a fox')])

    def test_parameters_of_llama_cpp_python_are_accepted(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            with Llama(model_path=self.plain, n_ctx=64, verbose=False, flash_attn=True, offload_kqv=True, logits_all=True, main_gpu=0,
                       rope_freq_base=0, rope_freq_scale=0) as llama:
                llama('a fox', max_tokens=1, top_k=-1)
            self.assertEqual(caught, [])
            Llama(self.plain, n_ctx=64, use_mlock=True).close()
            self.assertIn('use_mlock has no effect', str(caught[0].message))
        with self.assertRaisesRegex(TypeError, 'no parameter nonsense'):
            Llama(self.plain, nonsense=1)

    def test_text_longer_than_the_context_is_an_error(self):
        with Llama(self.plain, n_ctx=32) as llama:
            with self.assertRaisesRegex(TenonError, 'the context only 32'):
                llama('a fox ' * 100, max_tokens=1)
            self.assertTrue(llama('a fox', max_tokens=1)['choices'])

    def test_models_opened_and_closed_leak_nothing(self):
        """TENON_MODELS=1000 in `make test-python`."""
        count = int(os.environ.get('TENON_MODELS', '20'))

        def once(i):
            with Llama(self.plain, n_ctx=64, n_threads=1) as llama:
                llama('a fox', max_tokens=4, seed=i, grammar=Grammar('root ::= [a-z ]*'), stop=['zzz'])
                llama.create_chat_completion([{'role': 'user', 'content': 'Hi'}], max_tokens=2)
                stream = llama('a', max_tokens=8, stream=True)
                next(stream)  # left open
        for i in range(5):
            once(i)
        gc.collect()
        before, pages = lib.tn_memory_get_stats(), resident()
        for i in range(count):
            once(i)
        gc.collect()
        after = lib.tn_memory_get_stats()
        self.assertEqual((after.live_blocks, after.live_bytes), (before.live_blocks, before.live_bytes))
        self.assertLess(resident() - pages, 4 << 20)
        self.assertLess(len(os.listdir('/proc/self/fd')), 40)


def resident():
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')


if __name__ == '__main__':
    unittest.main()
