"""make_hf.py FOLDER: small random Hugging Face folders below FOLDER, of the shapes of the golden ones: qwen3, mixtral, llama3-rope."""
import json
import os
import random
import struct
import sys

WIDTH, FFN, VOCAB, LAYERS, HEADS, KV, HEAD, EXPERTS = 64, 160, 512, 3, 4, 2, 24, 4


def byte_characters():
    """GPT-2's characters for all bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]


def tokenizer():
    special = {0: '<|bos|>', 1: '<|eos|>', 2: '<|user|>', 509: '<|pad|>', 510: '<|x1|>', 511: '<|x2|>'}
    words = [special[0], special[1], special[2], *byte_characters()]
    merges, letters = [], 'etaoinshrdlu\u0120'
    for a in letters:
        for b in letters:
            for c in letters[:4]:
                for pair in ([a, b], [a + b, c]):
                    if len(words) < 509 and pair[0] + pair[1] not in words and all(part in words for part in pair):
                        merges.append(pair)
                        words.append(pair[0] + pair[1])
    added = [{'id': i, 'content': text, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
             for i, text in special.items()]
    level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
    return {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added, 'normalizer': None, 'pre_tokenizer': level,
            'post_processor': None, 'decoder': {**level, 'add_prefix_space': True},
            'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                      'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False, 'vocab': {word: i for i, word in enumerate(words)},
                      'merges': merges}}


def shapes(experts, norms):
    yield 'model.embed_tokens.weight', (VOCAB, WIDTH)
    yield 'model.norm.weight', (WIDTH,)
    for i in range(LAYERS):
        at = f'model.layers.{i}.'
        for name in ('input_layernorm', 'post_attention_layernorm'):
            yield f'{at}{name}.weight', (WIDTH,)
        for name, rows in (('q', HEADS), ('k', KV), ('v', KV)):
            yield f'{at}self_attn.{name}_proj.weight', (rows * HEAD, WIDTH)
            if norms and name != 'v':
                yield f'{at}self_attn.{name}_norm.weight', (HEAD,)
        yield f'{at}self_attn.o_proj.weight', (WIDTH, HEADS * HEAD)
        if experts:
            yield f'{at}block_sparse_moe.gate.weight', (EXPERTS, WIDTH)
        for e in range(EXPERTS if experts else 0):
            for name, shape in (('w1', (FFN, WIDTH)), ('w2', (WIDTH, FFN)), ('w3', (FFN, WIDTH))):
                yield f'{at}block_sparse_moe.experts.{e}.{name}.weight', shape
        for name, shape in (('gate', (FFN, WIDTH)), ('up', (FFN, WIDTH)), ('down', (WIDTH, FFN))):
            if not experts:
                yield f'{at}mlp.{name}_proj.weight', shape


def write_folder(folder, experts=False, norms=False, **config):
    rng, header, data = random.Random(folder.rsplit('/', 1)[-1]), {}, b''
    os.makedirs(folder)
    for name, shape in shapes(experts, norms):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = struct.pack(f'<{count}f', *[rng.gauss(0, 0.1) + (len(shape) == 1) for _ in range(count)])
        header[name] = {'dtype': 'F32', 'shape': shape, 'data_offsets': [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(',', ':')).encode()
    with open(folder + '/model.safetensors', 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + data)
    files = {'tokenizer.json': tokenizer(),
             'tokenizer_config.json': {'bos_token': '<|bos|>', 'eos_token': '<|eos|>'},
             'generation_config.json': {'bos_token_id': 0, 'eos_token_id': 1},
             'config.json': {'bos_token_id': 0, 'eos_token_id': 1, 'head_dim': HEAD, 'hidden_act': 'silu', 'hidden_size': WIDTH, 'intermediate_size': FFN,
                             'max_position_embeddings': 256, 'num_attention_heads': HEADS, 'num_hidden_layers': LAYERS, 'num_key_value_heads': KV,
                             'rms_norm_eps': 1e-6, 'rope_theta': 10000.0, 'tie_word_embeddings': True, 'vocab_size': VOCAB, **config}}
    for name, value in files.items():
        with open(f'{folder}/{name}', 'w', encoding='utf-8') as file:
            json.dump(value, file, indent=2, ensure_ascii=False)


def main():
    to = sys.argv[1]
    write_folder(f'{to}/qwen3', norms=True, architectures=['Qwen3ForCausalLM'], model_type='qwen3')
    write_folder(f'{to}/mixtral', experts=True, architectures=['MixtralForCausalLM'], model_type='mixtral', num_local_experts=EXPERTS,
                 num_experts_per_tok=2)
    write_folder(f'{to}/llama3-rope', architectures=['LlamaForCausalLM'], model_type='llama', rope_scaling={
        'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 64})


main()
