"""An authenticator and an authoriser for the tests, found by the broker through entry points like anybody's.

The authenticator refuses the user name "denied" and knows one authentication method, "echo": it sends "say
it" and wants it back. The authoriser refuses topics under "denied/".
"""

from __future__ import annotations

NAME = "conformance"
ENTRY_POINTS = f"""
[tidemq.authenticators]
{NAME} = conformance_providers:authenticator
[tidemq.authorisers]
{NAME} = conformance_providers:authoriser
"""
SOURCE = """
from tidemq.broker.providers import Verdict


class Authenticator:
    def authenticate(self, request):
        return Verdict(0x86 if request.username == "denied" else 0)

    async def converse(self, request, challenge):
        if request.auth_method != "echo":
            return Verdict(0x8C)
        answer = await challenge(b"say it")
        if answer != b"say it":
            return Verdict(0x87)
        return Verdict(0, auth_data=b"well said")


class Authoriser:
    def authorise(self, access):
        return not access.topic.startswith("denied/")


def authenticator(config, options):
    return Authenticator()


def authoriser(config, options):
    return Authoriser()
"""
