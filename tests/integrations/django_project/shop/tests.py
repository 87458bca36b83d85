"""The project's own tests: run by `manage.py test`, in the test database that Django makes."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.contrib.auth.models import User as Person
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from shop import jobs, tasks
from shop.models import User
from todoku.integrations.django import box
from todoku.integrations.django.models import DeadLetter, Delivery
from todoku.integrations.django.tasks import map_priority
from todoku.testing import assert_enqueued, assert_not_enqueued, empty, enqueued, frozen
from todoku.testing.assertions import published

try:
    from django.tasks import TaskResultStatus, default_task_backend, task_backends
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # Django 5
    from django_tasks import TaskResultStatus, default_task_backend, task_backends
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started


class Case(TransactionTestCase):
    """Nothing is left of the test before: Django empties its own tables, and these are todoku's."""

    def setUp(self) -> None:
        empty(box)


class Transactions(Case):
    """I2: the user and the job commit together, or neither."""

    def test_a_job_commits_with_atomic(self) -> None:
        with transaction.atomic():
            user = User.objects.create(name="ada")
            jobs.welcome.using(tx=connection).enqueue(user.id)
        assert_enqueued(jobs.welcome, user_id=user.id)
        assert box.drain() == 1
        assert User.objects.get().welcomed == 1

    def test_a_job_is_gone_with_a_rollback(self) -> None:
        try:
            with transaction.atomic():
                jobs.welcome.using(tx=box.connection).enqueue(User.objects.create(name="ada").id)
                raise KeyError
        except KeyError:
            pass
        assert_not_enqueued(jobs.welcome)
        assert not User.objects.exists()

    def test_an_async_job_uses_the_orm(self) -> None:
        user = User.objects.create(name="ada")
        jobs.welcome_later.enqueue(user.id)
        assert box.drain() == 1
        assert User.objects.get().welcomed == 1

    def test_the_app_is_in_the_test_database(self) -> None:
        assert connection.settings_dict["NAME"] in box.settings.database


class Tasks(Case):
    """django.tasks on todoku."""

    def run_through(self, result) -> None:
        assert result.status == TaskResultStatus.READY
        assert box.drain() == 1
        result.refresh()

    def test_a_task_runs_and_its_result_is_kept(self) -> None:
        result = tasks.greet.enqueue("ada")
        assert result.enqueued_at is not None
        self.run_through(result)
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.return_value == "hello ada"
        assert result.attempts == 1
        assert result.finished_at is not None
        again = tasks.greet.get_result(result.id)
        assert (again.args, again.kwargs, again.task.func) == (["ada"], {}, tasks.greet.func)

    def test_an_async_task_runs_from_async_code(self) -> None:
        result = asyncio.run(tasks.greet_slowly.aenqueue("ada"))
        assert asyncio.run(tasks.greet_slowly.aget_result(result.id)).status == TaskResultStatus.READY
        (row,) = Delivery.objects.all()
        assert (row.queue, row.priority) == ("slow", map_priority(50))
        self.run_through(result)
        assert result.return_value == "hello ada"

    def test_a_task_takes_its_context(self) -> None:
        result = tasks.attempt.enqueue()
        self.run_through(result)
        assert result.return_value == [1, result.id]

    def test_a_task_that_fails_is_a_dead_letter_and_knows_its_error(self) -> None:
        result = tasks.breaks.enqueue()
        self.run_through(result)
        assert result.status == TaskResultStatus.FAILED
        (error,) = result.errors
        assert error.exception_class is PermissionDenied
        assert "nobody" in error.traceback
        assert DeadLetter.objects.get().reason == "INTERNAL_ERROR"

    def test_a_backend_with_more_attempts_tries_again(self) -> None:
        with frozen(box) as clock:
            result = tasks.breaks_patiently.enqueue()
            self.run_through(result)
            assert (result.status, result.attempts) == (TaskResultStatus.READY, 1)
            for _ in range(2):
                clock.tick(60)
                assert box.drain() == 1
            result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
        assert [error.exception_class for error in result.errors] == [ConnectionError] * 3

    def test_I2_a_task_enqueued_in_atomic_is_gone_with_its_rollback(self) -> None:
        try:
            with transaction.atomic():
                User.objects.create(name="ada")
                result = tasks.greet.enqueue("ada")
                raise KeyError
        except KeyError:
            pass
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(result.id)
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result("no id at all")
        assert published(box, "shop.tasks.greet") == []

    def test_a_task_commits_with_atomic(self) -> None:
        with transaction.atomic():
            User.objects.create(name="ada")
            result = tasks.greet.enqueue("ada")
        self.run_through(result)
        assert result.return_value == "hello ada"

    def test_run_after_waits_for_the_databases_clock(self) -> None:
        with frozen(box) as clock:
            tasks.greet.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("ada")
            assert box.drain() == 0
            clock.tick(3700)
            assert box.drain() == 1

    def test_priorities_keep_their_order(self) -> None:
        assert (map_priority(-100), map_priority(0), map_priority(100)) == (0, 7, 15)
        assert sorted({map_priority(each) for each in range(-100, 101)}) == list(range(16))
        found = [map_priority(each) for each in range(-100, 101)]
        assert found == sorted(found)

    def test_signals_are_sent(self) -> None:
        seen = []
        receivers = {
            signal: lambda name=name, **_: seen.append(name)
            for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished))
        }
        for signal, receiver in receivers.items():
            signal.connect(receiver)
        try:
            self.run_through(tasks.greet.enqueue("ada"))
        finally:
            for signal, receiver in receivers.items():
                signal.disconnect(receiver)
        assert seen == ["enqueued", "started", "finished"]

    def test_the_backend_says_what_it_can(self) -> None:
        for backend in task_backends.all():
            can = (backend.supports_defer, backend.supports_priority, backend.supports_async_task)
            assert (*can, backend.supports_get_result) == (True, True, True, True)


class Admin(Case):
    """Looking, and acting with a name and a reason."""

    def setUp(self) -> None:
        super().setUp()
        self.client.force_login(Person.objects.create_superuser("grace", password="x"))
        jobs.welcome.enqueue(7, token="xyzzy")
        jobs.refused.enqueue()
        assert box.drain(limit=2) == 2
        jobs.welcome.using(delay=3600, key="seven").enqueue(7, token="xyzzy")

    def act(self, page: str, action: str, row, why: str) -> str:
        data = {"action": action, "_selected_action": [row.pk], "why": why}
        return self.client.post(f"/admin/todoku/{page}/", data, follow=True).content.decode()

    def test_deliveries_are_listed_and_shown_masked_and_read_only(self) -> None:
        listed = self.client.get("/admin/todoku/delivery/?q=welcome").content.decode()
        assert "welcome" in listed
        row = Delivery.objects.get(destination="welcome")
        shown = self.client.get(f"/admin/todoku/delivery/{row.pk}/change/").content.decode()
        assert "user_id" in shown
        assert "xyzzy" not in shown
        assert 'name="_save"' not in shown
        assert self.client.post(f"/admin/todoku/delivery/{row.pk}/change/", {"status": "x"}).status_code == 403
        assert self.client.get("/admin/todoku/delivery/add/").status_code == 403

    def test_I9_a_dead_letter_is_replayed_signed(self) -> None:
        row = DeadLetter.objects.get()
        assert "Enter a reason" in self.act("deadletter", "replay", row, "")
        assert DeadLetter.objects.exists()
        assert "1 replayed" in self.act("deadletter", "replay", row, "mended")
        assert not DeadLetter.objects.exists()
        (audit,) = box.store.messages.story(Delivery.objects.get(pk=row.pk).message.id).audit
        assert (audit.by, audit.why) == ("grace", "mended")

    def test_what_waits_is_cancelled_signed(self) -> None:
        row = Delivery.objects.get(destination="welcome")
        assert abs(row.next_run_at - timezone.now() - timedelta(hours=1)) < timedelta(minutes=5)
        assert "1 cancelled" in self.act("delivery", "cancel", row, "a mistake")
        assert DeadLetter.objects.get(pk=row.pk).reason == "CANCELLED"

    def test_who_may_only_look_may_not_act(self) -> None:
        viewer = Person.objects.create_user("alan", is_staff=True)
        viewer.user_permissions.add(Permission.objects.get(codename="view_deadletter"))
        self.client.force_login(viewer)
        assert self.client.get("/admin/todoku/deadletter/").status_code == 200
        self.act("deadletter", "replay", DeadLetter.objects.get(), "mended")
        assert DeadLetter.objects.exists()


class Commands(Case):
    """manage.py."""

    def test_no_migration_of_djangos_is_missing(self) -> None:
        call_command("makemigrations", "--check", "--dry-run")

    def test_the_program_runs_on_the_projects_database(self) -> None:
        jobs.refused.enqueue()
        call_command("todoku", "cancel", "--by", "grace", "--why", "a test", str(Delivery.objects.get().pk))
        assert [each.status for each in enqueued(jobs.refused)] == ["aborted"]


class Dashboard(Case):
    """todoku's dashboard at /todoku/, for the staff of the project."""

    def sign_in(self, **what: object) -> Person:
        person = Person.objects.create_user("ana", password="x", **what)
        self.client.force_login(person)
        return person

    def csrf(self, path: str = "/todoku/users") -> str:
        return self.client.get(path).content.decode().split('name="csrf" value="')[1].split('"')[0]

    def act(self, **more: str) -> int:
        form = {"name": "ada", "role": "viewer", "password": "correct horse battery", "why": "a try", **more}
        body = "&".join(f"{name}={value}" for name, value in form.items()).replace(" ", "+")
        sent = self.client.post(
            "/todoku/users", body, content_type="application/x-www-form-urlencoded", HTTP_ORIGIN="http://testserver"
        )
        return int(sent.status_code)

    def test_strangers_are_sent_to_the_login_and_users_who_are_no_staff_are_refused(self) -> None:
        sent = self.client.get("/todoku/account")
        assert (sent.status_code, sent["location"]) == (302, "/accounts/login/?next=/todoku/account")
        assert self.client.post("/todoku/users").status_code == 403
        self.sign_in()
        assert self.client.get("/todoku/").status_code == 403

    def test_staff_are_viewers_and_permissions_make_them_more(self) -> None:
        person = self.sign_in(is_staff=True)
        for codename, role in ((None, "viewer"), ("change_delivery", "operator"), ("delete_delivery", "admin")):
            if codename is not None:
                person.user_permissions.add(Permission.objects.get(codename=codename, content_type__app_label="todoku"))
            account = self.client.get("/todoku/account", HTTP_ACCEPT="application/json").json()
            assert account == {"name": "ana", "role": role, "has_session": False, "read_only": False}

    def test_every_link_has_the_prefix_and_files_are_served_below_it(self) -> None:
        self.sign_in(is_staff=True)
        for path in ("/todoku/", "/todoku/account"):
            shown = self.client.get(path)
            assert shown.status_code == 200
            links = [part.split('"')[0] for part in re.split('href="|src="|action="', shown.content.decode())[1:]]
            assert links
            assert all(link.startswith(("/todoku/", "#")) for link in links), links
            style = next(link for link in links if ".css" in link)
            assert self.client.get(style).status_code == 200
        assert self.client.get("/todoku/nowhere").status_code == 404

    def test_an_act_is_signed_with_the_users_name_and_needs_the_token_of_the_page(self) -> None:
        self.sign_in(is_staff=True, is_superuser=True)
        assert self.act() == 403
        assert self.act(csrf="wrong") == 403
        assert self.act(csrf=self.csrf()) == 303
        assert [row.act.by for row in box.store.audit.page(target="user:ada", limit=1)] == ["ana"]

    def test_a_viewer_does_not_act(self) -> None:
        self.sign_in(is_staff=True)
        assert self.client.get("/todoku/users").status_code == 403
        assert self.act(csrf="any") == 403

    def test_events_are_left_to_polling(self) -> None:
        """A stream would hold a thread of the server for as long as the page is open."""
        self.sign_in(is_staff=True)
        assert self.client.get("/todoku/live").status_code == 204

    def test_a_language_is_remembered(self) -> None:
        self.sign_in(is_staff=True)
        assert self.client.get("/todoku/account?lang=ja").status_code == 303
        assert 'lang="ja"' in self.client.get("/todoku/account").content.decode()

    def test_it_works_in_an_asynchronous_server_too(self) -> None:
        person = self.sign_in(is_staff=True)

        async def ask() -> int:
            await self.async_client.aforce_login(person)
            return int((await self.async_client.get("/todoku/account")).status_code)

        assert asyncio.run(ask()) == 200
