"""The other end of DH-HMAC-CHAP and of its keys, with hashlib, hmac and integers alone.

    peer.py host|controller HOST-NQN SUBSYSTEM-NQN HOST-KEY CONTROLLER-KEY|- HASH GROUP SC_C

Messages are lines of hexadecimal digits on standard input and output. The last line is "done", the generated PSK, its
identity and the TLS PSK. Keys are DHHC-1 texts. Whatever is wrong ends it with an exception.
"""

import base64
import hashlib
import hmac
import os
import struct
import sys
import zlib

sys.dont_write_bytecode = True
from exchange import P256, P384, Curve, MlKem

HASHES = {1: hashlib.sha256, 2: hashlib.sha384, 3: hashlib.sha512}
# RFC 7919, appendix A: bits of the prime, and the number in its middle.
GROUPS = {1: (2048, 560316), 2: (3072, 2625351), 3: (4096, 5736041), 4: (6144, 15705020), 5: (8192, 10965728)}


def prime(group):
    """2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1, with e as a sum of inverse factorials."""
    bits, number = GROUPS[group]
    precision = bits + 64
    e, term, k = 0, 1 << precision, 1
    while term:
        e, term, k = e + term, term // k, k + 1
    middle = (e >> (precision - (bits - 130))) + number
    return (1 << bits) - (1 << (bits - 64)) + (middle << 64) - 1


class Field:
    def __init__(self, group):
        self.prime = prime(group)
        self.offer_length = self.answer_length = GROUPS[group][0] // 8
        self.private = int.from_bytes(os.urandom(40), "big")

    def offer(self):
        return pow(2, self.private, self.prime).to_bytes(self.offer_length, "big")

    def answer(self, value):
        return self.offer(), self.conclude(value)

    def conclude(self, value):
        shared = pow(int.from_bytes(value, "big"), self.private, self.prime)
        return shared.to_bytes(self.offer_length, "big")


def exchanges(group):
    """What a group consists of."""
    if group in GROUPS:
        return [Field(group)]
    curve, kem = (P384, (4, 11, 5)) if group & 1 else (P256, (3, 10, 4))
    return ([Curve(curve)] if group & 0x10 else []) + ([MlKem(*kem)] if group & 0x20 else [])


def padded(value):
    return value + bytes(-len(value) % 4)


def cut(value, lengths):
    """The parts of a value, behind which only zeroes may be."""
    parts = []
    for length in lengths:
        parts.append(value[:length])
        value = value[length:]
    assert len(value) < 4 and not any(value)
    return parts


def transformed(text, owner):
    """The key of a DHHC-1 text, for whoever owns it."""
    prefix, number, coded, end = text.split(":")
    assert prefix == "DHHC-1" and end == ""
    coded = base64.b64decode(coded, validate=True)
    secret, crc = coded[:-4], struct.unpack("<I", coded[-4:])[0]
    assert zlib.crc32(secret) == crc
    if int(number) == 0:
        return secret
    return hmac.new(secret, owner.encode() + b"NVMe-over-Fabrics", HASHES[int(number)]).digest()


def expand_label(function, key, label, context, length):
    size = function().digest_size
    prk = hmac.new(bytes(size), key, function).digest()
    label = b"tls13 " + label
    info = struct.pack(">H", length) + bytes([len(label)]) + label + bytes([len(context)]) + context
    output, block, count = b"", b"", 1
    while len(output) < length:
        block = hmac.new(prk, block + info + bytes([count]), function).digest()
        output, count = output + block, count + 1
    return output[:length]


class Peer:
    def __init__(self, host, subsystem, host_key, controller_key, hash_id, group, sc_c):
        self.host, self.subsystem = host.encode(), subsystem.encode()
        self.host_key = transformed(host_key, host)
        self.controller_key = None if controller_key == "-" else transformed(controller_key, subsystem)
        self.hash_id, self.group, self.sc_c = int(hash_id), int(group), int(sc_c)
        self.function = HASHES[self.hash_id]
        self.length = self.function().digest_size
        self.session_key = None
        self.exchanges = exchanges(self.group)

    def offer(self):
        return padded(b"".join(exchange.offer() for exchange in self.exchanges))

    def answer(self, value):
        parts = cut(value, [exchange.offer_length for exchange in self.exchanges])
        answers = [exchange.answer(part) for exchange, part in zip(self.exchanges, parts)]
        self.agree(secret for _, secret in answers)
        return padded(b"".join(value for value, _ in answers))

    def conclude(self, value):
        parts = cut(value, [exchange.answer_length for exchange in self.exchanges])
        self.agree(exchange.conclude(part) for exchange, part in zip(self.exchanges, parts))

    def agree(self, secrets):
        if self.exchanges:
            self.session_key = self.function(b"".join(secrets)).digest()

    def respond(self, key, role, challenge, seqnum, name, peer):
        if self.session_key:
            challenge = hmac.new(self.session_key, challenge, self.function).digest()
        data = challenge + struct.pack("<IHB", seqnum, self.t_id, self.sc_c) + role + name + b"\0" + peer
        return hmac.new(key, data, self.function).digest()

    def host_response(self, challenge, seqnum):
        return self.respond(self.host_key, b"HostHost", challenge, seqnum, self.host, self.subsystem)

    def controller_response(self, challenge, seqnum):
        return self.respond(self.controller_key, b"Controller", challenge, seqnum, self.subsystem, self.host)

    def done(self, c1, c2):
        if self.sc_c == 0:
            print("done", flush=True)
            return
        psk = hmac.new(self.session_key, c1 + c2, self.function).digest()
        names = self.host + b" " + self.subsystem
        digest = base64.b64encode(hmac.new(psk, names + b" NVMe-over-Fabrics", self.function).digest())
        suite = b"%02d" % self.hash_id
        tls = expand_label(self.function, psk, b"nvme-tls-psk", suite + b" " + digest, self.length)
        identity = b"NVMe1G" + suite + b" " + names + b" " + digest
        print("done", psk.hex(), identity.decode(), tls.hex(), sep="\t", flush=True)


def send(message):
    print(message.hex(), flush=True)


def receive(kind, number, t_id=None):
    message = bytes.fromhex(sys.stdin.readline())
    assert message[:4] == bytes([kind, number, 0, 0]), message.hex()
    assert t_id in (None, struct.unpack("<H", message[4:6])[0])
    return message


def host(peer):
    peer.t_id = 0xbeef
    lists = bytes([peer.hash_id]).ljust(30, b"\0") + bytes([peer.group]).ljust(30, b"\0")
    send(struct.pack("<BBHHBB", 0, 0, 0, peer.t_id, peer.sc_c, 1) + bytes([1, 0, 1, 1]) + lists)

    message = receive(1, 1, peer.t_id)
    hl, hash_id, group, dhvlen, s1 = struct.unpack("<BxBBHI", message[6:16])
    assert (hl, hash_id, group) == (peer.length, peer.hash_id, peer.group) and s1 != 0
    assert len(message) == 16 + hl + dhvlen
    c1 = message[16:16 + hl]
    value = peer.answer(message[16 + hl:])

    c2 = os.urandom(hl) if peer.controller_key or peer.sc_c else bytes(hl)
    s2 = 7 if peer.controller_key else 0
    cvalid = int(c2 != bytes(hl))
    fixed = struct.pack("<BBHHBBBBHI", 1, 2, 0, peer.t_id, hl, 0, cvalid, 0, len(value), s2)
    send(fixed + peer.host_response(c1, s1) + c2 + value)

    message = receive(1, 3, peer.t_id)
    hl, rvalid = struct.unpack("<BxB", message[6:9])
    assert (hl, rvalid) == (peer.length, int(s2 != 0))
    if s2:
        assert message[16:] == peer.controller_response(c2, s2), "the controller's response"
        send(struct.pack("<BBHH10x", 1, 4, 0, peer.t_id))
    peer.done(c1, c2)


def controller(peer):
    message = receive(0, 0)
    peer.t_id, sc_c, napd = struct.unpack("<HBB", message[4:8])
    assert sc_c == peer.sc_c and napd == 1 and len(message) == 72
    authid, halen, dhlen = struct.unpack("<BxBB", message[8:12])
    assert authid == 1 and peer.hash_id in message[12:12 + halen] and peer.group in message[42:42 + dhlen]

    c1, s1, value = os.urandom(peer.length), 0x80000001, peer.offer()
    fixed = struct.pack(
        "<BBHHBBBBHI", 1, 1, 0, peer.t_id, peer.length, 0, peer.hash_id, peer.group, len(value), s1)
    # The host's buffer is longer than the message.
    send(fixed + c1 + value + bytes(100))

    message = receive(1, 2, peer.t_id)
    hl, cvalid, dhvlen, s2 = struct.unpack("<BxBxHI", message[6:16])
    assert hl == peer.length and len(message) == 16 + 2 * hl + dhvlen
    r1, c2 = message[16:16 + hl], message[16 + hl:16 + 2 * hl]
    peer.conclude(message[16 + 2 * hl:])
    assert r1 == peer.host_response(c1, s1), "the host's response"
    assert (cvalid, s2 != 0) == (int(bool(peer.controller_key or sc_c)), bool(peer.controller_key))

    r2 = peer.controller_response(c2, s2) if s2 else b""
    send(struct.pack("<BBHHBBB7x", 1, 3, 0, peer.t_id, hl, 0, int(s2 != 0)) + r2)
    if s2:
        receive(1, 4, peer.t_id)
    peer.done(c1, c2)


{"host": host, "controller": controller}[sys.argv[1]](Peer(*sys.argv[2:]))
