"""Breaks of what engine/index relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "levels: a child with none before it is its parent's first",
        "index/levels.py",
        "    if child.next_sibling != NO_NODE:\n"
        "        node_at(tree, child.next_sibling).previous_sibling = child_id\n",
        "",
        (
            "tests/unit/test_engine_trees.py::test_nodes_go_with_their_last_subscription",
            "tests/unit/test_engine_trees.py::test_wildcard_children_are_found_in_any_order_of_coming_and_going",
        ),
    ),
    Break(
        "levels: a node that goes is bare",
        "index/levels.py",
        " and at.value == cython.NULL and at.first_child == NO_NODE",
        " and at.value == cython.NULL",
        ("tests/unit/test_engine_trees.py::test_nodes_go_with_their_last_subscription",),
    ),
    Break(
        "levels: nodes in use are among those handed out",
        "index/levels.py",
        "    tree.node_count -= 1\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "levels: a node without wildcard has an edge",
        "index/levels.py",
        "remove_edge(tree, node, edge_tag(tree, parent, hash_level(tree, text)))",
        "remove_edge(tree, node, edge_tag(tree, node, hash_level(tree, text)))",
        ("tests/unit/test_engine_trees.py::test_nodes_go_with_their_last_subscription",),
    ),
    Break(
        "marks: each is below their number",
        "index/marks.py",
        "& (MARKS - 1))",
        "& (2 * MARKS - 1))",
        ("tests/unit/test_engine_trees.py::test_subscription_matches",),
    ),
    Break(
        "marks: a topic has that of each filter that matches it",
        "index/marks.py",
        "    return _mark_between(marks, count, first, last) if wild",
        "    return _mark_between(marks, count, last, first) if wild",
        ("tests/unit/test_engine_trees.py::test_subscription_matches",),
    ),
    Break(
        "subscribers: a large set has all items in its table",
        "index/subscribers.py",
        "        enter_position(members, members.count)\n",
        "        enter_position(members, 0)\n",
        ("tests/unit/test_engine_trees.py::test_set_keeps_its_members_through_every_size",),
    ),
    Break(
        "subscribers: a set has room for its items",
        "index/subscribers.py",
        "resize_set(members, members.capacity // 2)",
        "resize_set(members, members.capacity // 8)",
        ("tests/unit/test_engine_trees.py::test_set_keeps_its_members_through_every_size",),
    ),
    Break(
        "subscribers: no more sessions are counted than a set has items",
        "index/subscribers.py",
        "        grown.sessions = members.sessions\n",
        "",
        ("tests/unit/test_engine_trees.py::test_set_keeps_its_members_through_every_size",),
    ),
    Break(
        "subscribers: a session is in a set once",
        "index/subscriptions.py",
        "        found = find_held(held, subscription.session)",
        "        found = find_held(held, cython.address(subscription))",
        ("tests/unit/test_engine_trees.py::test_put_replaces_by_filter_and_session",),
    ),
    Break(
        "subscribers: an item leaves the set that it is in",
        "index/subscriptions.py",
        "    let_go(held, found)",
        "    let_go(held, held)",
        ("tests/unit/test_engine_trees.py::test_remove_takes_one_session_only",),
    ),
    Break(
        "subscriptions: no mark is beyond the version",
        "index/subscriptions.py",
        "    store_u64(cython.address(index.version), index.version + 1, RELEASE)\n",
        "",
        ("tests/unit/test_engine_trees.py::test_put_replaces_by_filter_and_session",),
    ),
    Break(
        "subscriptions: a group stands at its filter",
        "index/subscriptions.py",
        "    hold(held_by(node_at(index.filters, insert_path(index.filters, ROOT, filter))), item)",
        "    hold(held_by(node_at(index.filters, insert_path(index.filters, ROOT, name))), item)",
        ("tests/conformance/test_shared_subscriptions.py::test_no_retained_messages",),
    ),
    Break(
        "subscriptions: no more members are online than a group has",
        "index/subscriptions.py",
        "    group.online[member.reactor] += step\n",
        "    group.online[member.reactor] += 1\n",
        ("tests/conformance/test_shared_subscriptions.py::test_no_retained_messages",),
    ),
    Break(
        "subscriptions: no more members are stored than a group has",
        "index/subscriptions.py",
        "        group.stored += step\n",
        "        group.stored += 1\n",
        ("tests/unit/test_engine_trees.py::test_a_group_counts_its_members_that_are_stored_and_online",),
    ),
    Break(
        "rules: a set that can be found is held",
        "index/rules.py",
        "    rules.references = 1\n",
        "",
        ("tests/conformance/test_rules.py::test_clients_of_one_topic_are_judged_each_for_itself",),
    ),
    Break(
        "rules: a policy that is freed has no sets",
        "index/rules.py",
        "    if last and rules.known:\n        policy.sets.erase(rules.key)\n",
        "",
        ("tests/unit/test_acl_rules.py",),
    ),
    Break(
        "retained: a walk that goes on was counted at its node",
        "index/retained_index.py",
        "        start_waiting(walk)\n        stand(walk, 1)\n",
        "        stand(walk, 1)\n        start_waiting(walk)\n",
        ("tests/unit/test_engine_trees.py::test_walk_in_slices",),
    ),
    Break(
        "retained: a node counts the walks that stand there",
        "index/retained_index.py",
        "    stand(walk, -1)\n    visits",
        "    visits",
        ("tests/unit/test_engine_trees.py::test_walk_goes_on_when_its_place_is_removed",),
    ),
    Break(
        "retained: a walk with none before it is the first",
        "index/retained_index.py",
        "    if index.walks != cython.NULL:\n        index.walks.previous_walk = walk\n",
        "",
        (
            "tests/unit/test_engine_trees.py::test_walk_goes_on_when_its_place_is_removed",
            "tests/unit/test_engine_trees.py::test_walk_ends_when_the_tree_is_emptied",
        ),
    ),
    Break(
        "retained: what is removed was counted",
        "index/retained_index.py",
        "    if before == cython.NULL:\n        index.count += 1\n",
        "",
        (
            "tests/unit/test_engine_trees.py::test_walk_goes_on_when_its_place_is_removed",
            "tests/unit/test_engine_trees.py::test_walk_ends_when_the_tree_is_emptied",
        ),
    ),
]
