from libc.stdint cimport int64_t

from tidemq.engine.index.topic_rules cimport TopicRules

cdef TopicRules* topic_rules_of(object rows, int64_t* tally) except *    # held for the caller

# of this module alone
cdef object _fill(TopicRules* rules, rows)
