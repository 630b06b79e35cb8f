"""Trains what guesses tokens for models/tales.gguf: a smaller sibling and a layer for further tokens.

  python3 train_guessers.py --model models/tales.gguf --out OUT [--minutes 2]

1. Tales writes stories at several temperatures.
2. The sibling, a Llama of two layers, learns the distributions that Tales has on them (OUT/tales-draft.gguf).
3. The layer gets the state that Tales has after a token and the embedding of the next token, and learns the distribution
   of the one after that; what it makes of them is the state for another step, three of which are trained
   (OUT/tales-mtp.gguf, with the names that GGUF files have for such layers).
4. OUT/guessers.json: how often the likeliest token of each is the likeliest one of Tales.
"""
import argparse
import copy
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import gguf_io
from train import DEVICE, NAMES, Layer, Llama, gguf_name, load_teacher, rope_tables, say

CONTEXT = 256
STEPS = 3


class Head(nn.Module):
    """One layer between the states of a model and its output matrix."""

    def __init__(self, c):
        super().__init__()
        d = c["dim"]
        self.c = c
        self.enorm, self.hnorm, self.norm = (nn.Parameter(torch.ones(d)) for _ in range(3))
        self.project = nn.Linear(2 * d, d, bias=False)
        self.layer = Layer(c)
        self.cos, self.sin = rope_tables(c["context"], d // c["heads"])

    def forward(self, embedded, state):
        normed = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, self.c["eps"])
        x = self.project(torch.cat((normed(embedded, self.enorm), normed(state, self.hnorm)), -1))
        n = x.shape[1]
        return normed(self.layer(x, self.cos[:n], self.sin[:n]), self.norm)


def states_of(model, tokens):
    """The states before the output matrix."""
    x, n = model.embed(tokens), tokens.shape[1]
    for layer in model.layers:
        x = layer(x, model.cos[:n], model.sin[:n])
    return F.rms_norm(x, (x.shape[-1],), model.norm, model.c["eps"])


@torch.no_grad()
def write_stories(model, seconds, batch):
    """[stories, CONTEXT + 1] tokens; after the end of a story another one begins."""
    c = model.c
    model = copy.deepcopy(model).to(torch.bfloat16)
    caches = [[torch.zeros(batch, c["kv_heads"], CONTEXT, c["dim"] // c["heads"], device=DEVICE, dtype=torch.bfloat16)
               for _ in range(2)] for _ in range(c["layers"])]
    stories, begin = [], time.time()
    for layer in model.layers:  # a step's keys are repeated for the heads that share them
        layer.shares = layer.h // layer.kv
    while time.time() - begin < seconds:
        tokens = torch.zeros(batch, CONTEXT + 1, dtype=torch.int16, device=DEVICE)
        current = torch.zeros(batch, dtype=torch.long, device=DEVICE)
        temperature = torch.rand(batch, 1, device=DEVICE) * 0.9 + 0.1
        for at in range(CONTEXT):
            logits = step(model, current, caches, at).float()
            current = torch.multinomial(torch.softmax(logits / temperature, -1), 1)[:, 0]
            current = torch.where(tokens[:, at].long() == 1, torch.zeros_like(current), current)
            tokens[:, at + 1] = current.to(torch.int16)
        stories.append(tokens)
    return torch.cat(stories)


def step(model, tokens, caches, at):
    from train import rotate

    x = model.embed(tokens)[:, None]
    for layer, (keys, values) in zip(model.layers, caches):
        y = F.rms_norm(x, (x.shape[-1],), layer.norm1, layer.eps)
        q, k, v = layer.heads(layer.q(y), layer.h), layer.heads(layer.k(y), layer.kv), layer.heads(layer.v(y), layer.kv)
        cos, sin = model.cos[at : at + 1], model.sin[at : at + 1]
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = rotate(k, cos, sin), v
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), keys[:, :, : at + 1].repeat_interleave(layer.shares, 1),
                                           values[:, :, : at + 1].repeat_interleave(layer.shares, 1))
        x = x + layer.o(a.transpose(1, 2).reshape(x.shape[0], 1, -1))
        y = F.rms_norm(x, (x.shape[-1],), layer.norm2, layer.eps)
        x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
    return model.out(F.rms_norm(x, (x.shape[-1],), model.norm, model.c["eps"]))[:, 0]


def pad(tensors, width, rows):
    """Zeros up to `width` columns, and rows by the end of a name: norms then see a mean over more elements."""
    out = {}
    for name, array in tensors.items():
        old = array.shape[-1]
        if array.ndim == 1:
            out[name] = np.pad(array * math.sqrt(old / width), (0, width - old))
            continue
        n_rows = next((n for end, n in rows.items() if name.endswith(end + ".weight")), array.shape[0])
        columns = old if name.endswith("ffn_down.weight") else width
        out[name] = np.pad(array, ((0, n_rows - array.shape[0]), (0, columns - old)))
    return out


def start(module, layers):
    with torch.no_grad():
        for name, p in module.named_parameters():
            if p.ndim > 1:
                last = name.split(".")[-2] in ("o", "down")
                p.normal_(0, 0.02 if "embed" in name else 1 / math.sqrt(p.shape[1]) / (math.sqrt(2 * layers) if last else 1))


def tokenizer_keys(file):
    k = file.keys
    return [("tokenizer.ggml.model", 8, k["tokenizer.ggml.model"]), ("tokenizer.ggml.pre", 8, k["tokenizer.ggml.pre"]),
            ("tokenizer.ggml.tokens", ("arr", 8), k["tokenizer.ggml.tokens"]), ("tokenizer.ggml.token_type", ("arr", 5), k["tokenizer.ggml.token_type"]),
            ("tokenizer.ggml.merges", ("arr", 8), k["tokenizer.ggml.merges"]), ("tokenizer.ggml.bos_token_id", 4, 0),
            ("tokenizer.ggml.eos_token_id", 4, 1), ("tokenizer.ggml.add_bos_token", 7, True), ("tokenizer.ggml.add_eos_token", 7, False)]


def model_keys(name, c, layers):
    return [("general.architecture", 8, "llama"), ("general.name", 8, name), ("general.license", 8, "mit"), ("llama.vocab_size", 4, c["vocab"]),
            ("llama.context_length", 4, 512), ("llama.embedding_length", 4, c["dim"]), ("llama.block_count", 4, layers),
            ("llama.feed_forward_length", 4, c["ff"]), ("llama.attention.head_count", 4, c["heads"]), ("llama.attention.head_count_kv", 4, c["kv_heads"]),
            ("llama.rope.dimension_count", 4, c["dim"] // c["heads"]), ("llama.rope.freq_base", 6, 10000.0), ("llama.attention.layer_norm_rms_epsilon", 6, c["eps"])]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, default=2.0, help="for everything")
    parser.add_argument("--story-seconds", type=float, default=22.0)
    parser.add_argument("--batch", type=int, default=8192)
    args = parser.parse_args()
    begin = time.time()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    tales, _ = load_teacher(args.model)
    stories = write_stories(tales, args.story_seconds, args.batch)
    say("%d stories" % len(stories))
    c = tales.c
    small = dict(c, dim=192, layers=2, heads=6, kv_heads=3, ff=512, context=512)
    draft, head = Llama(small).to(DEVICE), Head(dict(c, context=512)).to(DEVICE)
    start(draft, 2)
    start(head, 1)
    draft.out.weight = draft.embed.weight
    for p in tales.parameters():
        p.requires_grad_(False)
    params = list(draft.parameters()) + list(head.parameters())
    optimizer = torch.optim.AdamW([dict(params=[p for p in params if p.ndim > 1], weight_decay=0.05), dict(params=[p for p in params if p.ndim < 2], weight_decay=0.0)],
                                  lr=1e-3, betas=(0.9, 0.95), fused=True)
    held, rows, peak = 512, 128, 4e-3

    def run(tokens):
        """Losses and agreements: of the draft, then of every step of the layer."""
        x = tokens[:, :-1].long()
        with torch.no_grad():
            states = states_of(tales, x)
            target = tales.out(states)
            share, likeliest = torch.softmax(target.float(), -1), target.argmax(-1)
        losses, agree = [], []

        def judge(logits, offset):
            logp = F.log_softmax(logits.float(), -1)
            losses.append(-(share[:, offset:] * logp).sum(-1).mean())
            agree.append((logits.argmax(-1) == likeliest[:, offset:]).float().mean())

        judge(draft(x), 0)
        state = states
        for depth in range(1, STEPS + 1):
            state = head(tales.embed(x[:, depth:]), state[:, :-1])
            judge(tales.out(state), depth)
        return losses, agree

    train, steps = stories[held:], 0
    learn = time.time()
    limit = begin + args.minutes * 60 - 8
    while time.time() < limit:
        fraction = (time.time() - learn) / (limit - learn)
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (steps + 1) / 200) * (1 - fraction)
        batch = train[torch.randint(0, len(train), (rows,), device=DEVICE)]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            losses, agree = run(batch)
        loss = losses[0] + losses[1] + 0.6 * losses[2] + 0.4 * losses[3]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        if steps % 250 == 0:
            say("step %d losses %s agree %s" % (steps, ["%.3f" % l.item() for l in losses], ["%.3f" % a.item() for a in agree]))
        steps += 1
    with torch.no_grad():
        parts = [run(stories[i : i + 64])[1] for i in range(0, held, 64)]
    agree = [sum(p[k].item() for p in parts) / len(parts) for k in range(1 + STEPS)]
    report = dict(steps=steps, tokens=steps * rows * CONTEXT, stories=len(stories), draft_agreement=agree[0], mtp_agreement=agree[1:],
                  draft_parameters=sum(p.numel() for p in draft.parameters()), seconds=time.time() - begin)
    say(json.dumps(report))

    file = gguf_io.Reader(args.model)
    numpy = lambda p: p.detach().float().cpu().numpy()
    tensors = {gguf_name(n): numpy(p) for n, p in draft.state_dict().items() if n != "out.weight"}
    tensors = pad(tensors, 256, {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256, "ffn_down": 256})
    wide = dict(small, dim=256, heads=8, kv_heads=4, eps=small["eps"] * small["dim"] / 256)
    gguf_io.write(os.path.join(args.out, "tales-draft.gguf"), model_keys("Tales draft", wide, 2) + tokenizer_keys(file), tensors, quantize=True)
    at = "blk.%d." % c["layers"]
    tensors = {"token_embd.weight": file.tensors["token_embd.weight"]}
    for name, p in head.layer.state_dict().items():
        tensors[at + NAMES[name] + ".weight"] = numpy(p)
    tensors[at + "nextn.eh_proj.weight"] = numpy(head.project.weight)
    for name, p in (("enorm", head.enorm), ("hnorm", head.hnorm), ("shared_head_norm", head.norm)):
        tensors[at + "nextn.%s.weight" % name] = numpy(p)
    gguf_io.write(os.path.join(args.out, "tales-mtp.gguf"), model_keys("Tales, further tokens", c, c["layers"] + 1) + [("llama.nextn_predict_layers", 4, 1)] + tokenizer_keys(file),
                  tensors, quantize=True)
    with open(os.path.join(args.out, "guessers.json"), "w") as out:
        json.dump(report, out, indent=1)


if __name__ == "__main__":
    main()
