"""Elliptic curves and ML-KEM with hashlib and integers alone, for peer.py."""

import hashlib
import os

# Of y^2 = x^3 - 3x + b over the prime field: the prime, b, the order, and the base point (NIST SP 800-186).
P256 = (
    2**256 - 2**224 + 2**192 + 2**96 - 1,
    0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
    0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    (
        0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    ),
)
P384 = (
    2**384 - 2**128 - 2**96 + 2**32 - 1,
    0xB3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF,
    0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    (
        0xAA87CA22BE8B05378EB1C71EF320AD746E1D3B628BA79B9859F741E082542A385502F25DBF55296C3A545E3872760AB7,
        0x3617DE4A96262C6F5D9E98BF9292DC29F8F41DBD289A147CE9DA3113B5F0B8C00A60B1CE1D7E819D7A431D7C90EA0E5F,
    ),
)


class Curve:
    def __init__(self, parameters, secret=None):
        self.p, self.b, order, self.base = parameters
        self.size = self.p.bit_length() // 8
        secret = secret or os.urandom(self.size + 8)
        self.secret = int.from_bytes(secret, "big") % (order - 1) + 1
        self.offer_length = self.answer_length = 1 + 2 * self.size

    def add(self, one, other):
        if one is None or other is None:
            return one or other
        (x1, y1), (x2, y2) = one, other
        if x1 == x2 and (y1 + y2) % self.p == 0:
            return None
        if one == other:
            slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, self.p)
        else:
            slope = (y2 - y1) * pow(x2 - x1, -1, self.p)
        x3 = (slope * slope - x1 - x2) % self.p
        return x3, (slope * (x1 - x3) - y1) % self.p

    def multiply(self, point):
        product = None
        for bit in bin(self.secret)[2:]:
            product = self.add(product, product)
            if bit == "1":
                product = self.add(product, point)
        return product

    def value(self):
        return b"\4" + b"".join(number.to_bytes(self.size, "big") for number in self.multiply(self.base))

    def shared(self, value):
        x, y = (int.from_bytes(value[1 + at:1 + at + self.size], "big") for at in (0, self.size))
        assert value[0] == 4 and (y * y - x * x * x + 3 * x - self.b) % self.p == 0, "a point of the curve"
        return self.multiply((x, y))[0].to_bytes(self.size, "big")

    def offer(self):
        return self.value()

    def answer(self, value):
        return self.value(), self.shared(value)

    def conclude(self, value):
        return self.shared(value)


Q, N = 3329, 256


def zeta(number):
    return pow(17, int(f"{number:07b}"[::-1], 2), Q)


def ntt(f):
    f, i, length = list(f), 1, 128
    while length >= 2:
        for start in range(0, N, 2 * length):
            factor, i = zeta(i), i + 1
            for j in range(start, start + length):
                t = factor * f[j + length]
                f[j], f[j + length] = (f[j] + t) % Q, (f[j] - t) % Q
        length //= 2
    return f


def inverse_ntt(f):
    f, i, length = list(f), 127, 2
    while length <= 128:
        for start in range(0, N, 2 * length):
            factor, i = zeta(i), i - 1
            for j in range(start, start + length):
                t = f[j]
                f[j], f[j + length] = (t + f[j + length]) % Q, factor * (f[j + length] - t) % Q
        length *= 2
    return [a * 3303 % Q for a in f]


def product(f, g):
    h = []
    for i in range(128):
        (a0, a1), (b0, b1) = f[2 * i:2 * i + 2], g[2 * i:2 * i + 2]
        gamma = zeta(i) * zeta(i) * 17
        h += [(a0 * b0 + a1 * b1 * gamma) % Q, (a0 * b1 + a1 * b0) % Q]
    return h


def total(polynomials):
    return [sum(column) % Q for column in zip(*polynomials)]


def encode(f, bits):
    number = sum(a << bits * i for i, a in enumerate(f))
    return number.to_bytes(32 * bits, "little")


def decode(data, bits):
    number = int.from_bytes(data, "little")
    return [number >> bits * i & (1 << bits) - 1 for i in range(N)]


def compress(f, bits):
    return [((a << bits) * 2 + Q) // (2 * Q) % (1 << bits) for a in f]


def decompress(f, bits):
    return [(a * Q * 2 + (1 << bits)) >> bits + 1 for a in f]


def sample_uniform(seed):
    data, a, at = hashlib.shake_128(seed).digest(4096), [], 0
    while len(a) < N:
        b0, b1, b2 = data[at:at + 3]
        a += [d for d in (b0 | (b1 & 15) << 8, b1 >> 4 | b2 << 4) if d < Q][:N - len(a)]
        at += 3
    return a


def sample_noise(seed, number):
    """With eta = 2."""
    data = hashlib.shake_256(seed + bytes([number])).digest(128)
    bits = int.from_bytes(data, "little")
    bit = lambda at: bits >> at & 1
    return [(bit(4 * i) + bit(4 * i + 1) - bit(4 * i + 2) - bit(4 * i + 3)) % Q for i in range(N)]


class MlKem:
    """FIPS 203."""

    def __init__(self, k, du, dv, seed=None, message=None):
        self.k, self.du, self.dv = k, du, dv
        self.seed, self.message = seed or os.urandom(64), message or os.urandom(32)
        self.offer_length, self.answer_length = 384 * k + 32, 32 * (du * k + dv)

    def matrix(self, rho):
        return [[sample_uniform(rho + bytes([j, i])) for j in range(self.k)] for i in range(self.k)]

    def offer(self):
        k, d = self.k, self.seed[:32]
        g = hashlib.sha3_512(d + bytes([k])).digest()
        rho, sigma = g[:32], g[32:]
        self.s = [ntt(sample_noise(sigma, i)) for i in range(k)]
        e = [ntt(sample_noise(sigma, k + i)) for i in range(k)]
        rows = self.matrix(rho)
        t = [total([*map(product, rows[i], self.s), e[i]]) for i in range(k)]
        self.key = b"".join(encode(one, 12) for one in t) + rho
        return self.key

    def encrypt(self, key, message, randomness):
        k, rho = self.k, key[-32:]
        t = [decode(key[384 * i:384 * (i + 1)], 12) for i in range(k)]
        assert all(a < Q for one in t for a in one), "a key"
        y = [ntt(sample_noise(randomness, i)) for i in range(k)]
        rows = self.matrix(rho)
        u = [
            total([inverse_ntt(total(product(rows[j][i], y[j]) for j in range(k))), sample_noise(randomness, k + i)])
            for i in range(k)
        ]
        bits = decompress(decode(message, 1), 1)
        v = total([inverse_ntt(total(map(product, t, y))), sample_noise(randomness, 2 * k), bits])
        return b"".join(encode(compress(one, self.du), self.du) for one in u) + encode(compress(v, self.dv), self.dv)

    def answer(self, key):
        g = hashlib.sha3_512(self.message + hashlib.sha3_256(key).digest()).digest()
        return self.encrypt(key, self.message, g[32:]), g[:32]

    def conclude(self, ciphertext):
        size = 32 * self.du
        u = [decompress(decode(ciphertext[size * i:size * (i + 1)], self.du), self.du) for i in range(self.k)]
        v = decompress(decode(ciphertext[size * self.k:], self.dv), self.dv)
        w = inverse_ntt(total(map(product, self.s, map(ntt, u))))
        message = encode(compress([(a - b) % Q for a, b in zip(v, w)], 1), 1)
        g = hashlib.sha3_512(message + hashlib.sha3_256(self.key).digest()).digest()
        rejected = hashlib.shake_256(self.seed[32:] + ciphertext).digest(32)
        return g[:32] if self.encrypt(self.key, message, g[32:]) == ciphertext else rejected
