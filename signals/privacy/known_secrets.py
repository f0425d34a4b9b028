"""detect-secrets, as far as it is quiet: forms of known services, no guessing by entropy.

The only file that imports it. Its plug-ins are called one by one, so neither its settings nor its
filters play a part, and none of its checks over the network can run.
"""

from collections.abc import Iterator
from functools import cache
from typing import Protocol

PLUGINS = (
    "artifactory.ArtifactoryDetector", "aws.AWSKeyDetector",
    "azure_storage_key.AzureStorageKeyDetector", "cloudant.CloudantDetector",
    "discord.DiscordBotTokenDetector", "github_token.GitHubTokenDetector",
    "gitlab_token.GitLabTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector",
    "openai.OpenAIDetector", "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector",
    "slack.SlackDetector", "square_oauth.SquareOAuthDetector", "stripe.StripeDetector",
    "telegram_token.TelegramBotTokenDetector", "twilio.TwilioKeyDetector",
)  # fmt: skip
"""Left out: entropy and keyword (noisy on code), private key (finds the header only), public IP,
JWT and basic auth (their time grows with the square of a hostile text; ours does not)."""


class Detector(Protocol):
    """What a plug-in of detect-secrets does for us."""

    def analyze_string(self, string: str) -> Iterator[str]: ...


@cache
def _detectors() -> tuple[Detector, ...]:
    from importlib import import_module

    found = []
    for name in PLUGINS:
        module, _, plugin = name.partition(".")
        detector: Detector = getattr(import_module(f"detect_secrets.plugins.{module}"), plugin)()
        found.append(detector)
    return tuple(found)


def known_secrets(text: str) -> Iterator[str]:
    """Each secret that a plug-in knows; empty ones left out."""
    for detector in _detectors():
        yield from filter(None, detector.analyze_string(text))
