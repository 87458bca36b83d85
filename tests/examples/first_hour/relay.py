"""GitHub's webhooks in, signed webhooks out: each push is passed on to a partner; what fails there is a dead letter.

GITHUB_SECRET=… PARTNER_URL=https://… PARTNER_SECRET=whsec_… todoku up --app relay:box
"""

import os
from dataclasses import dataclass

import todoku

box = todoku.App("sqlite:///relay.db")
box.ingest("github", todoku.github(secrets=[todoku.Ref("env:GITHUB_SECRET")]), topic="github.{type}")


@dataclass(frozen=True)
class Repository:
    full_name: str


@dataclass(frozen=True)
class Push:
    ref: str
    repository: Repository


@box.event("deploy.requested", key="repository")
@dataclass(frozen=True)
class DeployRequested:
    repository: str
    ref: str


box.route(
    "deploy.requested",
    to=todoku.http(os.environ["PARTNER_URL"], name="partner", secret=os.environ["PARTNER_SECRET"], timeout=10),
)


@box.on("github.ping")
def greet(_event: dict[str, object]) -> None:
    print("GitHub is connected", flush=True)


@box.on("github.push", transactional=True)
def deploy(ctx: todoku.Context, push: Push) -> None:
    if push.ref == "refs/heads/main":
        box.publish(DeployRequested(push.repository.full_name, push.ref), tx=ctx.tx)


@box.after("aborted", destination="partner")
def tell(ending: todoku.Ending) -> None:
    print(f"the partner did not get {ending.key}: {ending.reason}", flush=True)
