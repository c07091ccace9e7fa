"""Where we differ from ChasquiMQ 1.3.0 on purpose. Each is asserted, none is skipped."""

from __future__ import annotations

# Cases of repeat_spec.json that 1.3.0 takes and we refuse.
REFUSED_REPEATS = {
    "rep_name_300": "the name cap holds for repeats too: every job they fire would break it",
}

# Arguments that Python itself refuses, since our Backoff is a class and not a dict.
NOT_A_BACKOFF = {
    "retry_dict_no_kind": {"delay_ms": 1},
    "retry_dict_no_delay": {"kind": "fixed"},
}

NO_TRIMMING = (
    "1.3.0 adds and promotes with MAXLEN ~ 1000000, which drops the oldest jobs, read or not; "
    "nothing of ours trims the stream"
)

WHOLE_SECONDS = (
    "1.3.0 lets the milliseconds of the asking leak into cron times: a job upserted at .519 fires "
    "at 02:00:00.519 for ever; ours fires on the second"
)

LETTER_KEEPS_NAME = "1.3.0 loses the name of an entry that it cannot decode; our letter keeps it"

# Ours come behind all of 1.3.0's, which ignores fields that it does not know.
EXTRA_LETTER_FIELDS = (b"error", b"attempts", b"failed_at")

_TWICE = "a fixed local time that comes twice fires once; 1.3.0 answers in the past"
_BOTH = "a pattern of every hour fires in both repeated hours; 1.3.0 leaves the second one out"
_PAST = "1.3.0 answers in the past"

# (expression, zone, from in UTC) of cron_next.json -> (our answer in UTC, why).
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
