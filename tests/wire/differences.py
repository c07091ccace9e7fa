"""Intended differences from ChasquiMQ 1.3.0. The tests assert each of them and skip none."""

from __future__ import annotations

# Cases of repeat_spec.json that 1.3.0 accepts and this package rejects.
REJECTED_REPEATS = {
    "rep_name_300": "the limit of job names applies to repeats, whose jobs have the same name",
    "rep_limit0": "a limit of 0 runs would mean no limit to the scheduler",
}

# Arguments that raise TypeError, because Backoff is a class here and a dict in 1.3.0.
NOT_A_BACKOFF = {
    "retry_dict_no_kind": {"delay_ms": 1},
    "retry_dict_no_delay": {"kind": "fixed"},
}

NO_TRIMMING = (
    "1.3.0 adds and promotes with MAXLEN ~ 1000000, which drops the oldest jobs even if they are "
    "unread; this package never trims the stream"
)

WHOLE_SECONDS = (
    "1.3.0 keeps the milliseconds of the current time in cron times: a job upserted at .519 always "
    "fires at 02:00:00.519; this package fires on the second"
)

DEAD_LETTER_KEEPS_NAME = (
    "1.3.0 loses the job name of an entry that it cannot decode; this package keeps it"
)

# Written after the fields of 1.3.0, which ignores unknown fields.
EXTRA_DEAD_LETTER_FIELDS = (b"error", b"attempts", b"failed_at")

_TWICE = "a fixed local time that occurs twice fires once; 1.3.0 returns a time in the past"
_BOTH = "an hourly pattern fires in both repeated hours; 1.3.0 skips the second one"
_PAST = "1.3.0 returns a time in the past"

# (expression, zone, start in UTC) of cron_next.json -> (next fire of this package, reason).
CRON = {
    ("30 1 * * *", "America/New_York", "2027-11-07T06:00:00"): ("2027-11-08T06:30:00", _TWICE),
    ("59 1 * * *", "America/New_York", "2027-11-07T06:00:00"): ("2027-11-08T06:59:00", _TWICE),
    ("59 1 * * *", "America/New_York", "2027-11-07T06:30:00"): ("2027-11-08T06:59:00", _TWICE),
    ("30 1 * * *", "Europe/London", "2027-10-31T01:00:00"): ("2027-11-01T01:30:00", _TWICE),
    ("0 * * * *", "America/New_York", "2027-11-07T05:30:00"): ("2027-11-07T06:00:00", _BOTH),
    ("0 * * * *", "America/New_York", "2027-11-07T05:45:00"): ("2027-11-07T06:00:00", _BOTH),
    ("*/30 * * * *", "America/New_York", "2027-11-07T05:30:00"): ("2027-11-07T06:00:00", _BOTH),
    ("*/30 * * * *", "America/New_York", "2027-11-07T05:45:00"): ("2027-11-07T06:00:00", _BOTH),
    ("*/30 * * * *", "America/New_York", "2027-11-07T06:00:00"): ("2027-11-07T06:30:00", _PAST),
}
