"""The counters of a node, besides those of its transport; docs/counters.md says what they count."""

from __future__ import annotations

CLUSTER_COUNTERS = (
    "cluster_acknowledged_degraded",
    "cluster_unacknowledged_degraded",
    "cluster_added_after_removal",
    "cluster_added_twice",
    "cluster_connects_late",
    "cluster_end_void",
    "cluster_letters_dropped",
    "cluster_letters_refused",
    "cluster_letters_void",
    "cluster_messages_refused",
    "cluster_messages_unread",
    "cluster_older_epoch",
    "cluster_pauses",
    "cluster_records_again",
    "cluster_records_damaged",
    "cluster_records_fetched",
    "cluster_records_held",
    "cluster_rows_without_owner",
    "cluster_sessions_asked",
    "cluster_sessions_handed_over",
    "cluster_sessions_taken",
    "cluster_sessions_taken_over",
    "cluster_sessions_unanswered",
    "cluster_shared_ended",
    "cluster_shared_given",
    "cluster_shared_refused",
)
