"""An authenticator and an authoriser of one's own: a client may write only below its user name.

To have `tidemq serve` find one by its name, declare a factory as an entry point in the package that holds it:

    [project.entry-points."tidemq.authenticators"]
    directory = "my_package:make_directory"     # takes (Config, options)
"""

import asyncio

from tidemq import Broker, Config
from tidemq.broker import Access, Verdict
from tidemq.engine.door.events import ConnectRequest


class Directory:
    """Looks users up somewhere slow; nobody else waits meanwhile."""

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        await asyncio.sleep(0.1)  # a database, an HTTP service
        if request.password == b"secret":
            return Verdict()
        return Verdict(0x86, reason_string="ask the operator")  # bad user name or password


class OwnTopics:
    """Everybody may read; writing needs one's own name in front."""

    def authorise(self, access: Access) -> bool:
        return access.action == "subscribe" or access.topic.startswith(f"{access.username}/")


async def main() -> None:
    async with Broker(Config(host="127.0.0.1"), authenticator=Directory(), authoriser=OwnTopics()):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
