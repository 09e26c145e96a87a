from tidemq.engine.base.roster cimport ListedClient, Roster

cdef object roster_of(const Roster* roster)
cdef Roster* new_roster(object number, object question) except NULL

# of this module alone
cdef object _client_of(const ListedClient* row)
cdef object _place_of(const Roster* roster)
