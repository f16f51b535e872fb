"""Topics: a list, and one topic's route, queues and consumers."""

from __future__ import annotations

from starlette.responses import Response

from haservice.console.questions.paging import whole
from haservice.console.questions.topics import TopicKind, topic_facts, topic_list
from haservice.console.visit import NavEntry, Visit, page

SECTION = NavEntry("Topics", "/topics")
# Many queues, or many groups.
WITHIN_S = 20.0


async def show_list(visit: Visit) -> Response:
    text = visit.asked("q")
    kind = next((one for one in TopicKind if one.value == visit.asked("kind")), TopicKind.USER)
    found = await visit.ask(topic_list, text, kind, whole(visit.asked("page"), 1))
    return visit.page("topics.html", "Topics", found=found, q=text, kind=kind, kinds=list(TopicKind))


async def show_one(visit: Visit) -> Response:
    name = visit.path["topic"]
    found = await visit.ask(topic_facts, name, whole(visit.asked("page"), 1), within_s=WITHIN_S)
    return visit.page("topic.html", name, found=found)


ROUTES = (page("/topics", show_list), page("/topics/{topic}", show_one))
