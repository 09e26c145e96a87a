"""OpenSSL as C sees it, without its headers and without linking to it: the functions are looked up in the
library that Python's own `ssl` module uses (docs/decisions/0012). A module that calls them finds them first:
find_openssl(load_openssl(...)).
"""
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <dlfcn.h>
    #include <stdint.h>

    #define TIDEMQ_OPENSSL(F) \
        F(unsigned long, OpenSSL_version_num, (void)) \
        F(void, ERR_clear_error, (void)) \
        F(unsigned long, ERR_peek_error, (void)) \
        F(int, SSL_version, (const void* ssl)) \
        F(const char*, ERR_reason_error_string, (unsigned long code)) \
        F(const char*, X509_verify_cert_error_string, (long code)) \
        F(const void*, TLS_client_method, (void)) \
        F(const void*, TLS_server_method, (void)) \
        F(void*, SSL_CTX_new, (const void* method)) \
        F(void, SSL_CTX_free, (void* context)) \
        F(long, SSL_CTX_ctrl, (void* context, int command, long number, void* pointer)) \
        F(uint64_t, SSL_CTX_set_options, (void* context, uint64_t options)) \
        F(void, SSL_CTX_set_verify, (void* context, int mode, void* callback)) \
        F(int, SSL_CTX_set_default_verify_paths, (void* context)) \
        F(int, SSL_CTX_load_verify_locations, (void* context, const char* file, const char* folder)) \
        F(int, SSL_CTX_use_certificate_chain_file, (void* context, const char* file)) \
        F(int, SSL_CTX_use_PrivateKey_file, (void* context, const char* file, int kind)) \
        F(void, SSL_CTX_set_default_passwd_cb, (void* context, int (*ask)(char*, int, int, void*))) \
        F(void*, SSL_new, (void* context)) \
        F(void, SSL_free, (void* ssl)) \
        F(long, SSL_ctrl, (void* ssl, int command, long number, void* pointer)) \
        F(int, SSL_set1_host, (void* ssl, const char* host)) \
        F(void, SSL_set_connect_state, (void* ssl)) \
        F(void, SSL_set_accept_state, (void* ssl)) \
        F(void, SSL_set_bio, (void* ssl, void* reads, void* writes)) \
        F(int, SSL_do_handshake, (void* ssl)) \
        F(int, SSL_read, (void* ssl, void* data, int size)) \
        F(int, SSL_write, (void* ssl, const void* data, int size)) \
        F(int, SSL_shutdown, (void* ssl)) \
        F(int, SSL_get_error, (const void* ssl, int result)) \
        F(long, SSL_get_verify_result, (const void* ssl)) \
        F(void*, SSL_get1_peer_certificate, (const void* ssl)) \
        F(int, i2d_X509, (const void* certificate, unsigned char** to)) \
        F(void, X509_free, (void* certificate)) \
        F(void*, BIO_meth_new, (int type, const char* name)) \
        F(int, BIO_meth_set_read, (void* method, int (*call)(void*, char*, int))) \
        F(int, BIO_meth_set_write, (void* method, int (*call)(void*, const char*, int))) \
        F(int, BIO_meth_set_ctrl, (void* method, long (*call)(void*, int, long, void*))) \
        F(void*, BIO_new, (const void* method)) \
        F(int, SSL_CTX_check_private_key, (const void* context)) \
        F(void, SSL_CTX_set_default_passwd_cb_userdata, (void* context, void* data)) \
        F(int, SSL_CTX_set_cipher_list, (void* context, const char* names)) \
        F(int, SSL_CTX_set_session_id_context, (void* context, const unsigned char* id, unsigned int size)) \
        F(int, SSL_CTX_set_num_tickets, (void* context, size_t count)) \
        F(long, SSL_CTX_set_timeout, (void* context, long seconds)) \
        F(void*, SSL_load_client_CA_file, (const char* file)) \
        F(void, SSL_CTX_set_client_CA_list, (void* context, void* names)) \
        F(void*, SSL_CTX_get_cert_store, (const void* context)) \
        F(void, SSL_CTX_set1_cert_store, (void* context, void* store)) \
        F(int, X509_STORE_set_flags, (void* store, unsigned long flags)) \
        F(void*, X509_STORE_add_lookup, (void* store, void* method)) \
        F(void*, X509_LOOKUP_file, (void)) \
        F(int, X509_load_crl_file, (void* lookup, const char* file, int kind)) \
        F(void, SSL_CTX_set_alpn_select_cb, (void* context, int (*choose)(void*, const unsigned char**, \
            unsigned char*, const unsigned char*, unsigned int, void*), void* data)) \
        F(int, SSL_CTX_up_ref, (void* context)) \
        F(long, SSL_CTX_callback_ctrl, (void* context, int command, int (*call)(void*, int*, void*))) \
        F(const char*, SSL_get_servername, (const void* ssl, int kind)) \
        F(void*, SSL_set_SSL_CTX, (void* ssl, void* context)) \
        F(void*, SSL_get_rbio, (const void* ssl)) \
        F(int, CRYPTO_get_ex_new_index, (int kind, long number, void* data, void* make, void* copy, \
            void (*free)(void*, void*, void*, int, long, void*))) \
        F(int, SSL_CTX_set_ex_data, (void* context, int index, void* data)) \
        F(const void*, EVP_sha1, (void)) \
        F(int, EVP_Digest, (const void* data, size_t size, unsigned char* digest, unsigned int* digest_size, \
            const void* kind, void* engine)) \
        F(int, EVP_EncodeBlock, (unsigned char* to, const unsigned char* data, int size)) \
        F(void, BIO_set_init, (void* bio, int yes)) \
        F(void, BIO_set_data, (void* bio, void* data)) \
        F(void*, BIO_get_data, (void* bio)) \
        F(void, BIO_set_flags, (void* bio, int flags)) \
        F(void, BIO_clear_flags, (void* bio, int flags))

    #define TIDEMQ_DECLARE(result, name, arguments) static result (*tidemq_##name) arguments;
    TIDEMQ_OPENSSL(TIDEMQ_DECLARE)

    /* NULL, or the name of the first function that the library does not have. What was found is not
       written again: other threads call it by then. */
    static const char* tidemq_find_openssl(void* library) {
        static void* found;
        if (library == found) return NULL;
    #define TIDEMQ_FIND(result, name, arguments) \
        if (!(*(void**)&tidemq_##name = dlsym(library, #name))) return #name;
        TIDEMQ_OPENSSL(TIDEMQ_FIND)
        found = library;
        return NULL;
    }
    """
    enum:
        RTLD_NOW
        RTLD_LOCAL
    void* dlopen(const char* path, int mode)
    const char* find_openssl "tidemq_find_openssl"(void* library)

    unsigned long OpenSSL_version_num "tidemq_OpenSSL_version_num"()
    int SSL_version "tidemq_SSL_version"(const void* ssl)
    void ERR_clear_error "tidemq_ERR_clear_error"()
    unsigned long ERR_peek_error "tidemq_ERR_peek_error"()
    const char* ERR_reason_error_string "tidemq_ERR_reason_error_string"(unsigned long code)
    const char* X509_verify_cert_error_string "tidemq_X509_verify_cert_error_string"(long code)
    const void* TLS_client_method "tidemq_TLS_client_method"()
    const void* TLS_server_method "tidemq_TLS_server_method"()
    void* SSL_CTX_new "tidemq_SSL_CTX_new"(const void* method)
    void SSL_CTX_free "tidemq_SSL_CTX_free"(void* context)
    long SSL_CTX_ctrl "tidemq_SSL_CTX_ctrl"(void* context, int command, long number, void* pointer)
    uint64_t SSL_CTX_set_options "tidemq_SSL_CTX_set_options"(void* context, uint64_t options)
    void SSL_CTX_set_verify "tidemq_SSL_CTX_set_verify"(void* context, int mode, void* callback)
    int SSL_CTX_set_default_verify_paths "tidemq_SSL_CTX_set_default_verify_paths"(void* context)
    int SSL_CTX_load_verify_locations "tidemq_SSL_CTX_load_verify_locations"(
        void* context, const char* file, const char* folder)
    int SSL_CTX_use_certificate_chain_file "tidemq_SSL_CTX_use_certificate_chain_file"(
        void* context, const char* file)
    int SSL_CTX_use_PrivateKey_file "tidemq_SSL_CTX_use_PrivateKey_file"(
        void* context, const char* file, int kind)
    void SSL_CTX_set_default_passwd_cb "tidemq_SSL_CTX_set_default_passwd_cb"(
        void* context, int (*ask)(char*, int, int, void*) noexcept nogil)
    void* SSL_new "tidemq_SSL_new"(void* context)
    void SSL_free "tidemq_SSL_free"(void* ssl)
    long SSL_ctrl "tidemq_SSL_ctrl"(void* ssl, int command, long number, void* pointer)
    int SSL_set1_host "tidemq_SSL_set1_host"(void* ssl, const char* host)
    void SSL_set_connect_state "tidemq_SSL_set_connect_state"(void* ssl)
    void SSL_set_accept_state "tidemq_SSL_set_accept_state"(void* ssl)
    void SSL_set_bio "tidemq_SSL_set_bio"(void* ssl, void* reads, void* writes)
    int SSL_do_handshake "tidemq_SSL_do_handshake"(void* ssl)
    int SSL_read "tidemq_SSL_read"(void* ssl, void* data, int size)
    int SSL_write "tidemq_SSL_write"(void* ssl, const void* data, int size)
    int SSL_shutdown "tidemq_SSL_shutdown"(void* ssl)
    int SSL_get_error "tidemq_SSL_get_error"(const void* ssl, int result)
    long SSL_get_verify_result "tidemq_SSL_get_verify_result"(const void* ssl)
    void* SSL_get1_peer_certificate "tidemq_SSL_get1_peer_certificate"(const void* ssl)
    int i2d_X509 "tidemq_i2d_X509"(const void* certificate, unsigned char** to)
    void X509_free "tidemq_X509_free"(void* certificate)
    void* BIO_meth_new "tidemq_BIO_meth_new"(int kind, const char* name)
    int BIO_meth_set_read "tidemq_BIO_meth_set_read"(
        void* method, int (*call)(void*, char*, int) noexcept nogil)
    int BIO_meth_set_write "tidemq_BIO_meth_set_write"(
        void* method, int (*call)(void*, const char*, int) noexcept nogil)
    int BIO_meth_set_ctrl "tidemq_BIO_meth_set_ctrl"(
        void* method, long (*call)(void*, int, long, void*) noexcept nogil)
    void* BIO_new "tidemq_BIO_new"(const void* method)
    int SSL_CTX_check_private_key "tidemq_SSL_CTX_check_private_key"(const void* context)
    void SSL_CTX_set_default_passwd_cb_userdata "tidemq_SSL_CTX_set_default_passwd_cb_userdata"(
        void* context, void* data)
    int SSL_CTX_set_cipher_list "tidemq_SSL_CTX_set_cipher_list"(void* context, const char* names)
    int SSL_CTX_set_session_id_context "tidemq_SSL_CTX_set_session_id_context"(
        void* context, const unsigned char* id, unsigned int size)
    int SSL_CTX_set_num_tickets "tidemq_SSL_CTX_set_num_tickets"(void* context, size_t count)
    long SSL_CTX_set_timeout "tidemq_SSL_CTX_set_timeout"(void* context, long seconds)
    void* SSL_load_client_CA_file "tidemq_SSL_load_client_CA_file"(const char* file)
    void SSL_CTX_set_client_CA_list "tidemq_SSL_CTX_set_client_CA_list"(void* context, void* names)
    void* SSL_CTX_get_cert_store "tidemq_SSL_CTX_get_cert_store"(const void* context)
    void SSL_CTX_set1_cert_store "tidemq_SSL_CTX_set1_cert_store"(void* context, void* store)
    int X509_STORE_set_flags "tidemq_X509_STORE_set_flags"(void* store, unsigned long flags)
    void* X509_STORE_add_lookup "tidemq_X509_STORE_add_lookup"(void* store, void* method)
    void* X509_LOOKUP_file "tidemq_X509_LOOKUP_file"()
    int X509_load_crl_file "tidemq_X509_load_crl_file"(void* lookup, const char* file, int kind)
    void SSL_CTX_set_alpn_select_cb "tidemq_SSL_CTX_set_alpn_select_cb"(
        void* context,
        int (*choose)(void*, const unsigned char**, unsigned char*, const unsigned char*, unsigned int, void*)
            noexcept nogil,
        void* data)
    int SSL_CTX_up_ref "tidemq_SSL_CTX_up_ref"(void* context)
    long SSL_CTX_callback_ctrl "tidemq_SSL_CTX_callback_ctrl"(
        void* context, int command, int (*call)(void*, int*, void*) noexcept nogil)
    const char* SSL_get_servername "tidemq_SSL_get_servername"(const void* ssl, int kind)
    void* SSL_set_SSL_CTX "tidemq_SSL_set_SSL_CTX"(void* ssl, void* context)
    void* SSL_get_rbio "tidemq_SSL_get_rbio"(const void* ssl)
    int CRYPTO_get_ex_new_index "tidemq_CRYPTO_get_ex_new_index"(
        int kind, long number, void* data, void* make, void* copy,
        void (*free)(void*, void*, void*, int, long, void*) noexcept nogil)
    int SSL_CTX_set_ex_data "tidemq_SSL_CTX_set_ex_data"(void* context, int index, void* data)
    const void* EVP_sha1 "tidemq_EVP_sha1"()
    int EVP_Digest "tidemq_EVP_Digest"(
        const void* data, size_t size, unsigned char* digest, unsigned int* digest_size,
        const void* kind, void* engine)
    int EVP_EncodeBlock "tidemq_EVP_EncodeBlock"(unsigned char* to, const unsigned char* data, int size)
    void BIO_set_init "tidemq_BIO_set_init"(void* bio, int yes)
    void BIO_set_data "tidemq_BIO_set_data"(void* bio, void* data)
    void* BIO_get_data "tidemq_BIO_get_data"(void* bio)
    void BIO_set_flags "tidemq_BIO_set_flags"(void* bio, int flags)
    void BIO_clear_flags "tidemq_BIO_clear_flags"(void* bio, int flags)
