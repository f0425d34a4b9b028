"""Whatever a machine makes of the OpenAPI schema, valid or not: no server error, no hang.

Schemathesis makes the requests; its own pytest plugin does not run under the pytest used here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig

from serving.api.app import create_app
from serving.text import TextCodec
from tests.serving.scripted import CONTEXT, App, running_app
from tests.serving.small_model import make_engine

TIMEOUT_S = 20
NUM_EXAMPLES = 25
GENERATION = ("/v1/completions", "/v1/chat/completions")
OTHERS = ("/v1/models", "/v1/feedback", "/health", "/ready")


@pytest.fixture(scope="module")
def app(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    engine = make_engine(checkpoint, max_context_tokens=CONTEXT)
    workspace = tmp_path_factory.mktemp("schema")
    with running_app(workspace, checkpoint, engine, TextCodec(checkpoint)) as running:
        yield running


@pytest.fixture(scope="module")
def schema(app: App) -> Any:
    """Narrowed to the one model there is and to short replies, so that requests get far."""
    described = create_app(app.node).openapi()
    assert set(GENERATION + OTHERS) <= described["paths"].keys()
    few = {"type": "integer", "minimum": 1, "maximum": 3}
    for name in ("CompletionBody", "ChatBody"):
        properties = described["components"]["schemas"][name]["properties"]
        properties["model"] = {"const": "tendril"}
        for limit in {"max_tokens", "max_completion_tokens"} & properties.keys():
            properties[limit] = few
        for long in {"messages", "tools", "stop"} & properties.keys():
            properties[long]["maxItems"] = 2
        properties.pop("suffix", None)  # this model's tokenizer has no tokens for it
    return schemathesis.openapi.from_dict(described, config=SchemathesisConfig())


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", [*GENERATION, *OTHERS])
def test_no_request_makes_a_server_error_or_hangs(
    app: App, schema: Any, path: str, mode: GenerationMode
) -> None:
    statuses: set[int] = set()
    for operation in schema[path].values():
        if mode is GenerationMode.NEGATIVE and not list(operation.body):
            continue  # nothing to make wrong

        @settings(
            max_examples=NUM_EXAMPLES,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Case[Any]) -> None:
            headers = {"authorization": f"Bearer {app.key}"}
            response = case.call(base_url=app.url, headers=headers, timeout=TIMEOUT_S)
            case.validate_response(response, checks=[not_a_server_error])
            statuses.add(response.status_code)

        check()
    if mode is GenerationMode.POSITIVE and path in GENERATION:
        assert 200 in statuses
