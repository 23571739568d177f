"""What schemathesis has to be told: how MessagePack is written and read, and what JSON Schema and JSON take differently."""

import msgpack
import schemathesis

# The whole numbers that MessagePack, and a server in any language with numbers of a fixed size, has.
SMALLEST, LARGEST = -(2**63), 2**64 - 1


def wire(value):
    """As the wire has it: JSON Schema takes 1.0 for an integer, and knows no largest number."""
    if isinstance(value, float) and value.is_integer() and SMALLEST <= value <= LARGEST:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, SMALLEST), LARGEST)
    if isinstance(value, list):
        return [wire(item) for item in value]
    if isinstance(value, dict):
        return {name: wire(member) for name, member in value.items()}
    return value


@schemathesis.hook
def map_body(context, body):
    return wire(body)


@schemathesis.serializer("application/msgpack")
def write_msgpack(context, value):
    return msgpack.packb(wire(value))


@schemathesis.deserializer("application/msgpack")
def read_msgpack(context, response):
    return msgpack.unpackb(response.content, strict_map_key=False)
