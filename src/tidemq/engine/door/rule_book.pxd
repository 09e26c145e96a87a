from libc.stdint cimport int64_t

from tidemq.engine.index.rules cimport Policy, Rule
from tidemq.engine.state.mail cimport Letter

cdef Policy* policy_of(object rows, int64_t* tally) except *    # held for the caller
cdef Letter* letter_of(object username, object groups, object rules, int64_t* tally) except *

# of this module alone
cdef object _fill_rule(Rule* rule, row)
